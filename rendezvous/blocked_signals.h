// Threads are made with all signals blocked: those are for the threads of the program, of which a
// handler may expect to interrupt one, and in a launcher for the main thread, which waits for them.
#pragma once

#include <signal.h>

namespace ddprun::rendezvous {

// Blocks them for this thread, and so for those that it makes, as long as it lives: also where no
// thread can be made, and an exception comes instead.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// For who is to hear of it: a process begins with those blocked that whoever started it had
// blocked.
inline void unblock_signal(int signal) {
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
}

}  // namespace ddprun::rendezvous
