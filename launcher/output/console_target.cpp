// Who can be asked never to block (pipes and terminals that are opened anew, sockets) is written to
// by the loop. Nobody can be asked that for a regular file: its disk or server may take a pause.
#include "launcher/output/console_target.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using command_line::WriteCall;
using command_line::Written;
using rendezvous::UniqueFd;

// At a time where it may hang, so that each write that returns is a sign of life.
constexpr std::size_t file_write_bytes = 256 << 10;
constexpr std::size_t terminal_write_bytes = 4096;

// What is written to: our own, closed with the last who writes, or the caller's.
struct Sink {
  explicit Sink(UniqueFd ours) : own(std::make_shared<const UniqueFd>(std::move(ours))) {
    fd = own->get();
  }
  explicit Sink(int callers) : fd(callers) {}

  int fd = -1;
  std::shared_ptr<const UniqueFd> own;
};

Written outcome(ssize_t count) {
  if (count > 0) return {static_cast<std::size_t>(count), 0};
  return {0, count < 0 ? errno : EIO};
}

WriteCall write_to(Sink sink) {
  return [sink = std::move(sink)](std::string_view text) {
    for (;;) {
      const Written written = outcome(::write(sink.fd, text.data(), text.size()));
      if (written.error != EINTR) return written;
    }
  };
}

WriteCall write_in_pieces(const Sink& sink, std::size_t bytes) {
  return [fd = sink.fd, bytes, write = write_to(sink)](std::string_view text) {
    for (;;) {
      const Written written = write(text.substr(0, bytes));
      if (written.error != EAGAIN) return written;
      pollfd writable{fd, POLLOUT, 0};  // Somebody else has set O_NONBLOCK on a shared terminal.
      ::poll(&writable, 1, -1);
    }
  };
}

// A thread may hang in it for longer than the caller keeps it open.
Sink sink_to_keep(int fd) {
  try {
    return Sink(rendezvous::duplicate(fd));
  } catch (const std::system_error&) {  // A console is better than none.
    return Sink(fd);
  }
}

WriteCall send_to(int fd) {
  return [fd](std::string_view text) {
    for (;;) {
      const ssize_t count = ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      const Written written = outcome(count);
      if (written.error != EINTR) return written;
    }
  };
}

}  // namespace

ConsoleTarget console_target(int fd) {
  ConsoleTarget target;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return target;
  target.is_terminal = ::isatty(fd) == 1;
  target.is_file = S_ISREG(status.st_mode);
  if (S_ISSOCK(status.st_mode)) {
    target.write = send_to(fd);
    return target;
  }
  if (S_ISFIFO(status.st_mode) || target.is_terminal) {
    // Opened anew: O_NONBLOCK belongs to the open file, which a shell or the workers may share, and
    // would be left set on their terminal.
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    UniqueFd own(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (own) {
      target.write = write_to(Sink(std::move(own)));
      return target;
    }
    // Another user's, as after su: of a terminal, "writable" promises room for one byte only.
  }
  const Sink sink = sink_to_keep(fd);
  // /dev/null and its like take everything at once.
  target.may_hang = !S_ISCHR(status.st_mode) || target.is_terminal;
  target.write = !target.may_hang ? write_to(sink)
                                  : write_in_pieces(sink, target.is_file ? file_write_bytes
                                                                         : terminal_write_bytes);
  return target;
}

}  // namespace ddprun::launcher
