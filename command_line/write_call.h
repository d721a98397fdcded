// Writing, as a value: what a console or a file is written with, and what tests put in its place.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace ddprun::command_line {

struct Written {
  std::size_t bytes = 0;
  int error = 0;  // An errno.
};

// One attempt. Is given at least one byte, and need not take all: without an error it took some.
using WriteCall = std::function<Written(std::string_view)>;

}  // namespace ddprun::command_line
