// Carries out what watch_command.h has read: looks for jobs, and shows them.
#pragma once

#include "launcher/watch/watch_command.h"

namespace ddprun::launcher {

// Returns the exit status: 0, or 1 when there is no such job, or nothing of it to show.
int run_watch(const WatchCommand& command);

}  // namespace ddprun::launcher
