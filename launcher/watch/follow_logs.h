// ddprun logs: what the ranks have written into their log files, and with -f what they go on to
// write, over restarts.
#pragma once

#include "launcher/watch/watch_command.h"

namespace ddprun::launcher {

// Returns the exit status.
int run_logs(const WatchCommand& command);

}  // namespace ddprun::launcher
