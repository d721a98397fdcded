// The descriptors 0, 1 and 2, as whoever started the program left them.
#pragma once

#include <fcntl.h>

namespace ddprun::command_line {

// To be called before anything else is opened. Of those that are closed (`<&- >&- 2>&-`) the next
// files that are opened would get the numbers, and be stdin, stdout and stderr to all that reads or
// writes there: console lines among a file's own.
inline void fill_closed_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace ddprun::command_line
