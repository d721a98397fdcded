// One agent per node: takes part in the job's rounds and runs this node's workers.
//
//   options --> endpoint (if this node hosts it) --> ControlClient --> WorkerGroup
//
// Everything happens in run(), on one event loop in one thread: signals, messages from the
// coordinator and ends of workers go into AgentStateMachine, and what it answers is carried out.
#pragma once

#include "launcher/hosts/node_channel.h"
#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// Runs the job on this node and returns ddprun's exit status (docs/failures.md). Everything that
// went wrong has been said on stderr by then, and no worker is left. Throws for a broken
// environment only (no event loop, no memory).
// `starter`: whoever started this node on its host and tells what the job comes to; null: nobody,
// and this node tells it itself.
int run_agent(const LaunchOptions& options, NodeChannel* starter = nullptr);

}  // namespace ddprun::launcher
