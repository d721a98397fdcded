// A job on several hosts, started by one command: ddprun -H a,b PROGRAM. This launcher runs no
// worker; it starts a launcher on each host, tells each its part, shows what all of them write,
// passes signals on, and ends as the job does. What happens when is decided in hosts/hosts_state.h.
#pragma once

#include <string>

#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// Returns ddprun's exit status: the job's, or exit_status::internal when it could not begin.
// Nothing is left on any host by then. With --dry-run only says what would be done.
int run_on_hosts(const LaunchOptions& options, const std::string& launcher_path);

}  // namespace ddprun::launcher
