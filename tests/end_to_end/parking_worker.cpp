// A worker that survives its attempt: says what it is in each, parks when it is told that one is
// over, and ends with 0 at SIGUSR1. Written against rendezvous/contract/spare_channel.h alone, as a
// program without our library would be. `parking_worker never N`: local rank N never parks. `leaves
// N`: in the first attempt it parks unasked.
#include <poll.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "rendezvous/contract/spare_channel.h"
#include "worker/wait_for_rank.h"

namespace {

namespace rdzv = ddprun::rendezvous;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void say(char word) {
  if (::send(rdzv::spare_fd, &word, 1, MSG_NOSIGNAL) != 1) std::_Exit(7);
}

void take_over(const rdzv::Environment& environment) {
  for (const auto& [name, value] : environment) {
    if (name != rdzv::death_marks_variable) {
      ::setenv(name.c_str(), value.c_str(), 1);
      continue;
    }
    const auto set = rdzv::read_death_marks(value);
    std::vector<sembuf> operations;
    for (const auto& mark : set->marks)
      operations.push_back({mark.semaphore, mark.value, SEM_UNDO});
    ::semop(set->id, operations.data(), operations.size());
  }
}

void tell_rank() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::cout << "attempt " + variable("TORCHELASTIC_RESTART_COUNT") + " rank " + variable("RANK") +
                   " of " + variable("WORLD_SIZE") + " is pid " + std::to_string(::getpid()) +
                   " at " + std::to_string(now.tv_sec * 1'000'000 + now.tv_nsec / 1000) + " us\n"
            << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t end;
  ::sigemptyset(&end);
  ::sigaddset(&end, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &end, nullptr);
  const int ends = ::signalfd(-1, &end, 0);
  ddprun::worker::wait_for_rank();
  const std::string wish = argc > 2 && variable("LOCAL_RANK") == argv[2] ? argv[1] : "";
  const bool never = wish == "never";
  tell_rank();
  if (variable(rdzv::rank_variable) != std::to_string(rdzv::spare_fd)) {
    std::cout << "no channel" << std::endl;
    pollfd waits{ends, POLLIN, 0};
    return ::poll(&waits, 1, -1) == 1 ? 0 : 1;
  }
  say(rdzv::can_park);
  std::cout << "rank " + variable("RANK") + " can park\n" << std::flush;
  if (wish == "leaves" && variable("TORCHELASTIC_RESTART_COUNT") == "0") {
    say(rdzv::gives_rank_back);
  }
  std::string received;
  for (;;) {
    pollfd waits[] = {{ends, POLLIN, 0}, {rdzv::spare_fd, POLLIN, 0}};
    ::poll(waits, 2, -1);
    if (waits[0].revents != 0) return 0;
    char bytes[4096];
    const ssize_t count = ::read(rdzv::spare_fd, bytes, sizeof bytes);
    // The job is over, or the launcher was killed: who ends us then is what tests want to know.
    if (count <= 0) {
      for (;;) ::pause();
    }
    received.append(bytes, static_cast<std::size_t>(count));
    while (const auto message = rdzv::take_message(received)) {
      if (!rdzv::attempt_over(*message)) {
        take_over(*message);
        say(rdzv::can_park);  // First: tests take the other for a sign of it.
        tell_rank();
      } else if (!never) {
        std::cout << "rank " + variable("RANK") + " parks: " + *rdzv::attempt_over(*message) + "\n"
                  << std::flush;
        say(rdzv::gives_rank_back);
      }
    }
  }
}
