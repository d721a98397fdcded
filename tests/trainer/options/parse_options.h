// The command line of `train`, as the tests of its options write it.
#pragma once

#include <vector>

#include "trainer/options/train_options.h"

namespace ddprun::trainer {

inline ParsedCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace ddprun::trainer
