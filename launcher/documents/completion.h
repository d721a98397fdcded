// Completion of ddprun's command line in shells: completions/ddprun.bash and completions/_ddprun,
// from table.h.
#pragma once

#include <string>

namespace ddprun::launcher {

std::string bash_completion();
std::string zsh_completion();

}  // namespace ddprun::launcher
