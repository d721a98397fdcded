// The man page of `train` and its completions, made from the options that its parser knows.
//
// A core: options in, text out.
#pragma once

#include <string>

namespace ddprun::trainer {

std::string train_man_page();
std::string train_bash_completion();
std::string train_zsh_completion();
std::string train_fish_completion();

}  // namespace ddprun::trainer
