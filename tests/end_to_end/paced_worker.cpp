// A worker that says how long its steps are, and takes no such time, for tests of who is slow: it
// keeps up until SIGUSR1, and if its rank is an argument it is slow until the next one. SIGUSR2
// ends it.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "worker/progress_page.h"

namespace {

volatile std::sig_atomic_t changes = 0, ended = 0;

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  if (rank == nullptr) return 2;
  bool may_be_slow = false;
  for (int i = 1; i < argc; ++i) may_be_slow = may_be_slow || std::string(argv[i]) == rank;
  std::signal(SIGUSR1, [](int) { changes = changes + 1; });
  std::signal(SIGUSR2, [](int) { ended = 1; });
  for (int step = 1; ended == 0; ++step) {
    const bool slow = may_be_slow && changes % 2 == 1;
    ddprun::worker::ProgressPage::own().step_done(
        {.step = step, .step_s = 0.2, .wait_s = slow ? 0 : 0.15});
    if (step == 1) std::cout << "rank " << rank << " trains, pid " << ::getpid() << std::endl;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}
