// The descriptors 0, 1 and 2, as whoever started the program left them.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace ddprun::command_line {

// To be called before anything else is opened. Of those that are closed (`<&- >&- 2>&-`) the next
// files that are opened would get the numbers, and be stdin, stdout and stderr to all that reads or
// writes there: console lines among a file's own.
inline void fill_closed_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
  }
}

// Makes writes to `fd`, a pipe or terminal, wait for its reader. Whoever shares it may have set
// O_NONBLOCK, which belongs to the open file, and would then have text refused in the middle for
// being read late. It stays theirs: `fd` gets an open file of its own, where one can be had.
inline void wait_for_reader_of(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) == 0) return;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return;
  if (!S_ISFIFO(status.st_mode) && ::isatty(fd) != 1) return;
  // Not blocking here, either: a pipe whose readers are gone would be waited for.
  const int own = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                         O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own < 0) return;
  ::fcntl(own, F_SETFL, ::fcntl(own, F_GETFL) & ~O_NONBLOCK);
  ::dup2(own, fd);
  ::close(own);
}

}  // namespace ddprun::command_line
