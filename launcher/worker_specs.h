// What each worker of this node is started with in one attempt: arguments, environment, output.
//
// A core: nothing here asks the system. Names and meanings of the variables: torchrun's contract
// (worker/worker_env.h).
#pragma once

#include <string>
#include <vector>

#include "launcher/options.h"
#include "launcher/worker_group.h"
#include "rendezvous/control_message.h"

namespace ddprun::launcher {

struct WorkerSpecInputs {
  const LaunchOptions& options;
  const rendezvous::RoundStart& round;
  std::string attempt_dir;        // Holds <local rank>/; "" = no error files and no log files.
  EnvironmentLookup environment;  // The launcher's own.
  int console_columns = 0;        // Of the terminal on stdout; 0: it is none.
  int cpus = 1;                   // That this process may use.
};

// One per local rank. Throws what worker_argv() and visible_device() throw (options.h).
std::vector<WorkerSpec> make_worker_specs(const WorkerSpecInputs& inputs);

// "SIGTERM,SIGINT" for TORCHELASTIC_SIGNALS_TO_HANDLE.
std::string signal_list(const std::vector<int>& signals);

}  // namespace ddprun::launcher
