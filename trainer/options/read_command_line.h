// The command line of `train` for its main, which knows who is to hear of a wrong one.
#pragma once

#include <optional>
#include <string>

#include "trainer/options/train_options.h"

namespace ddprun::trainer {

struct CommandLine {
  std::optional<TrainOptions> options;  // Nothing: the program ends ...
  int exit_code = 0;                    // ... with 0 after --help and its like, or with 2 ...
  std::string problem = {};             // ... of which this tells. Nobody has been told yet.
};

// `version`: what --version prints.
CommandLine read_command_line(int argc, const char* const* argv, const std::string& version);

// What -h prints: one screen.
std::string short_help();

}  // namespace ddprun::trainer
