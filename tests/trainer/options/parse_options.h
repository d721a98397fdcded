// The command line of `train`, as the tests of its options write it.
#pragma once

#include <vector>

#include "trainer/options/read_command_line.h"

namespace ddprun::trainer {

inline CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train");
  return read_command_line(static_cast<int>(arguments.size()), arguments.data(), "train");
}

}  // namespace ddprun::trainer
