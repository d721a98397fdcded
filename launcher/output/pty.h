// Pseudo-terminals for workers (--pty).
#pragma once

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};

// `worker_end` is a terminal in all but one thing: it changes no byte, so that '\n' does not become
// "\r\n" in log files. A worker may change that. It is nobody's controlling terminal: sessions and
// signals of a worker are as with a pipe, and nothing typed reaches it.
struct Pty {
  rendezvous::UniqueFd our_end;  // Closed on exec, as the other.
  rendezvous::UniqueFd worker_end;
};
Pty open_pty();  // Throws std::system_error.

// Of the terminal behind `fd`; false: it is none, or does not know.
bool read_terminal_size(int fd, TerminalSize& size);
void set_terminal_size(int fd, TerminalSize size);

}  // namespace ddprun::launcher
