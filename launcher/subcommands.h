// Runs what launcher/options/subcommands.h has found.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

// `arguments` begin with the subcommand's name. Returns the exit status; throws UsageExit.
int run_subcommand(const std::vector<std::string>& arguments, const std::string& launcher_path);

}  // namespace ddprun::launcher
