// How long log files become.
//
// A core: plain values.
#pragma once

#include <cstddef>

namespace ddprun::launcher {

struct LogRotation {
  std::size_t bytes_max = 0;  // Of one file; 0 = one file, however long.
  int keep = -1;              // How many full files stay beside the current one; -1 = all.
};

}  // namespace ddprun::launcher
