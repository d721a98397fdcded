// A worker that ddprun may keep ready: says what it is before and after it has a rank, and ends
// with 0 at SIGUSR1. `spare_worker never`: as a spare it never gets ready.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <string>

#include "worker/wait_for_rank.h"
#include "worker/worker_env.h"

using namespace ddprun::worker;

int main(int argc, char** argv) {
  // Blocked from the start, so that a SIGUSR1 that comes early is not lost, and not deadly.
  sigset_t end;
  ::sigemptyset(&end);
  ::sigaddset(&end, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &end, nullptr);
  const bool never = argc > 1 && std::string(argv[1]) == "never";
  if (is_spare()) {
    std::cout << "pid " << ::getpid() << " warms up" << std::endl;
    while (never) ::pause();
  }
  wait_for_rank();
  const WorkerEnv env = read_worker_env();
  std::cout << "attempt " << env.restart_count << " rank " << env.rank << " of " << env.world_size
            << " is pid " << ::getpid() << " nice " << ::getpriority(PRIO_PROCESS, 0) << std::endl;
  int signal = 0;
  return ::sigwait(&end, &signal);
}
