// What each worker of this node is started with in one attempt: arguments, environment, output.
//
// A core: nothing here asks the system. Names and meanings of the variables: torchrun's contract
// (worker/worker_env.h).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/cpu_binding.h"
#include "launcher/options/launch_options.h"
#include "launcher/workers/worker_spec.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

// Where rank 0 of the workers opens a store of its own, on a port that is free.
struct WorkerStore {
  std::string host;
  int port = 0;
};

struct WorkerSpecInputs {
  const LaunchOptions& options;
  const rendezvous::RoundStart& round;
  std::optional<int> launched_at_s = {};  // As worker::WorkerEnv has it.
  std::string host_name;                  // Of this machine.
  std::string attempt_dir;         // Holds <local rank>/; "" = no error files and no log files.
  EnvironmentLookup environment;   // The launcher's own.
  int console_columns = 0;         // Of the terminal on stdout; 0: it is none.
  std::function<int()> cpus;       // That this process may use; asked for a note alone.
  std::vector<WorkerCpus> places;  // By place (local_places.h); empty: not asked for.
  int key_fd = -1;                 // As WorkerSpec's.
  int memory_fd = -1;              // As WorkerSpec's.
  int progress_fd = -1;            // As WorkerSpec's.
  // For NCCL_RAS_ADDR; "" = workers have the launcher's, or none.
  std::string ras_address = {};
  bool may_park = false;  // Another attempt may follow this one.
  std::chrono::milliseconds peer_word_limit{
      0};                                   // With may_park: when a worker gives up waiting for it.
  std::vector<int> filled = {};             // The places that have a worker; empty: all.
  std::optional<WorkerStore> worker_store;  // Nothing: all workers use the launcher's store.
};

// The places that --numa-binding and --omp-threads auto ask for; empty, and the machine is not
// looked at, when neither is given.
std::vector<WorkerCpus> asked_places(const LaunchOptions& options);

// One per local rank. Throws what worker_argv() and visible_device() throw
// (launcher/options/launch_options.h).
std::vector<WorkerSpec> make_worker_specs(const WorkerSpecInputs& inputs);

// What the spare of that worker is started with, from what the worker of the attempt at hand was:
// the same program, place and key, and instead of what only the next round decides the word
// "spare". `folder`: for its output where the worker's goes to files.
WorkerSpec spare_of(const WorkerSpec& worker, const std::string& folder);

// What to tell about CPUs and threads, a line each: once a job, not in every attempt.
std::vector<std::string> placement_notes(const WorkerSpecInputs& inputs);

// "SIGTERM,SIGINT" for TORCHELASTIC_SIGNALS_TO_HANDLE.
std::string signal_list(const std::vector<int>& signals);

}  // namespace ddprun::launcher
