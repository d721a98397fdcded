// Completion of ddprun's command line in shells: completions/ddprun.bash, completions/_ddprun (zsh)
// and completions/ddprun.fish.
#pragma once

#include <string>

namespace ddprun::launcher {

std::string bash_completion();
std::string zsh_completion();
std::string fish_completion();

}  // namespace ddprun::launcher
