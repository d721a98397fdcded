// -H, --hostfile and what goes with them: a job that is started on several hosts from here.
#pragma once

#include "launcher/options/arguments.h"
#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// Reads the hosts, takes their options out of `split`, and leaves there what a node of that job
// would be given, so that it is checked here and not on every host. Nothing without hosts. Throws
// UsageExit.
void take_hosts(SplitArguments& split, LaunchOptions& result);

}  // namespace ddprun::launcher
