// The loop that write(2) needs, for descriptors that may block their thread.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

#include "command_line/write_call.h"

namespace ddprun::command_line {

// From where the descriptor stands, until all is written or one write fails: how far it came, and
// the errno of that, or 0.
inline Written write_all(int fd, std::string_view bytes) {
  Written done;
  while (done.bytes < bytes.size()) {
    const ssize_t count = ::write(fd, bytes.data() + done.bytes, bytes.size() - done.bytes);
    if (count > 0) {
      done.bytes += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      done.error = count == 0 ? EIO : errno;
      break;
    }
  }
  return done;
}

}  // namespace ddprun::command_line
