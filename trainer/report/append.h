// The loop that write(2) needs, and how far it came.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

namespace ddprun::trainer {

struct Appended {
  std::size_t bytes = 0;
  int error = 0;  // The errno of what stopped it; 0: all was written.
};

// To a descriptor, from where it stands.
inline Appended append(int fd, std::string_view text) {
  Appended done;
  while (done.bytes < text.size()) {
    const ssize_t count = ::write(fd, text.data() + done.bytes, text.size() - done.bytes);
    if (count > 0) {
      done.bytes += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      done.error = count == 0 ? EIO : errno;
      break;
    }
  }
  return done;
}

}  // namespace ddprun::trainer
