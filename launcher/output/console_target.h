// How a console is written to: one answer for each kind of descriptor.
#pragma once

#include "command_line/write_call.h"

namespace ddprun::launcher {

struct ConsoleTarget {
  // Empty: the descriptor is none. EAGAIN: wait until `fd` is writable.
  command_line::WriteCall write;
  bool is_terminal = false;
  bool is_file = false;
  bool may_hang = false;  // Not for a thread that others wait for.
};

// `fd` stays the caller's. Never sets O_NONBLOCK on it: that flag would be shared with the shell
// that gave it.
ConsoleTarget console_target(int fd);

}  // namespace ddprun::launcher
