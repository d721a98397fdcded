// A debugger that holds a process: killed, that cannot be reaped, and looks as one that hangs in
// the kernel does.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace ddprun::testing {

class Debugger {
 public:
  explicit Debugger(int pid) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0 || ::pipe2(hold_, O_CLOEXEC) != 0) {
      throw std::runtime_error("no pipe for a debugger");
    }
    own_pid_ = ::fork();
    if (own_pid_ == 0) {
      ::close(hold_[1]);
      ::signal(SIGCHLD, SIG_DFL);
      const char answer = ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 'y' : 'n';
      char released = 0;
      if (::write(ready[1], &answer, 1) != 1 || ::read(hold_[0], &released, 1) < 0) ::_exit(1);
      ::_exit(0);
    }
    char answer = 'n';
    holds_ = ::read(ready[0], &answer, 1) == 1 && answer == 'y';
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Debugger() { release(); }
  Debugger(const Debugger&) = delete;
  Debugger& operator=(const Debugger&) = delete;

  bool holds() const { return holds_; }  // False: ptrace is not permitted.
  void release() {
    if (own_pid_ <= 0) return;
    ::close(hold_[0]);
    ::close(hold_[1]);
    ::waitpid(own_pid_, nullptr, 0);
    own_pid_ = -1;
  }

 private:
  int hold_[2] = {-1, -1};
  pid_t own_pid_ = -1;
  bool holds_ = false;
};

}  // namespace ddprun::testing
