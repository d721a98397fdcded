// The calls that make a pair of descriptors into a terminal whose log has the worker's bytes.
#include "launcher/output/pty.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <cerrno>
#include <system_error>

namespace ddprun::launcher {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Pty open_pty() {
  Pty pty;
  pty.our_end.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!pty.our_end) fail("cannot open a pseudo-terminal (/dev/ptmx)");
  if (::unlockpt(pty.our_end.get()) != 0) fail("cannot unlock a pseudo-terminal");
  // By descriptor and not by name: /dev/pts may be another one in a container.
  pty.worker_end.reset(::ioctl(pty.our_end.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!pty.worker_end) fail("cannot open the worker's end of a pseudo-terminal");
  termios modes{};
  const int terminal = pty.worker_end.get();
  if (::tcgetattr(terminal, &modes) != 0) fail("cannot set up a pseudo-terminal");
  // Or the terminal would make \r\n of \n, and log files would not hold what the worker wrote.
  modes.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  modes.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  if (::tcsetattr(terminal, TCSANOW, &modes) != 0) fail("cannot set up a pseudo-terminal");
  return pty;
}

bool read_terminal_size(int fd, TerminalSize& size) {
  winsize window{};
  if (::ioctl(fd, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row == 0) {
    return false;
  }
  size = {window.ws_col, window.ws_row};
  return true;
}

void set_terminal_size(int fd, TerminalSize size) {
  winsize window{};
  window.ws_col = static_cast<unsigned short>(size.columns);
  window.ws_row = static_cast<unsigned short>(size.rows);
  ::ioctl(fd, TIOCSWINSZ, &window);
}

}  // namespace ddprun::launcher
