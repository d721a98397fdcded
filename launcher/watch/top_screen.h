// ddprun top: the same as status, again and again, on a terminal that is given back as it was.
#pragma once

#include "launcher/watch/watch_command.h"

namespace ddprun::launcher {

// Returns the exit status. On no terminal it writes plain text until the job ends.
int run_top(const WatchCommand& command);

}  // namespace ddprun::launcher
