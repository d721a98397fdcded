// Which variables of the environment go along to the other hosts, as -x says. Nothing goes by
// itself: what a login shell there sets up is more often right. A core: no sockets, threads or
// clock.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

struct ChosenEnvironment {
  std::vector<std::string> variables;  // "NAME=value", each name once.
  std::vector<std::string> notes;      // For the user: names that mean nothing here.
};

// "A,NCCL_*" -> {"A", "NCCL_*"}; what sets a value ("A=1,2") is one word with its commas.
std::vector<std::string> split_wishes(const std::string& text);

// `wishes`: "NAME", "NAME=value" or a pattern with * and ?; a later one wins. `environment`:
// "NAME=value". Patterns leave out PET_*, which are options and have been read here. Throws
// std::invalid_argument for what can be no variable.
ChosenEnvironment choose_environment(const std::vector<std::string>& wishes,
                                     const std::vector<std::string>& environment);

}  // namespace ddprun::launcher
