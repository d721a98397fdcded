// What a process does just now, as /proc tells it.
#pragma once

#include <string>

#include "tests/testing/text.h"

namespace ddprun::testing {

// 'R' runs, 'S' sleeps, 'T' is halted, 'Z' has ended and is not reaped; '?' = there is none.
inline char process_state(int pid) {
  const std::string stat = content_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos ? '?' : stat.at(name_end + 2);
}

}  // namespace ddprun::testing
