// Starts one worker as its WorkerSpec says: environment, pipes or files, and a message that helps
// when it cannot be started.
#pragma once

#include <memory>
#include <string>

#include "launcher/output/forwarder.h"
#include "launcher/processes/child_process.h"
#include "launcher/processes/death_order.h"
#include "launcher/workers/start_error.h"
#include "launcher/workers/worker_spec.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

struct LaunchedChild {
  ChildProcess process;
  std::shared_ptr<OutputForwarder::Stream> stream;
  rendezvous::UniqueFd channel = {};  // Our end, of a worker that keeps its own.
};

// `guard_variable` is added to the environment. `may_inherit_stdout`: no other worker writes to the
// console, so this one may have it as its stdout, and still see a terminal. Makes a channel for a
// worker that keeps one. Throws StartError.
LaunchedChild launch_child(const WorkerSpec& spec, OutputForwarder& output,
                           const std::string& guard_variable, bool may_inherit_stdout,
                           const DeathMarks& death_marks);

}  // namespace ddprun::launcher
