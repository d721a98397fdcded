// A worker is asked where it stands: one on this library answers, any other is left alone.
#include "worker/stack_page.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "launcher/status/progress_pages.h"
#include "launcher/status/rank_stacks.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process_state.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::patience;
namespace rendezvous = ddprun::rendezvous;

namespace {

// A child that may answer, says that it is ready, and lives until the test ends it.
class Child {
 public:
  Child(const ProgressPages& pages, bool answers) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ready[0]);
      const std::string place = std::to_string(::fcntl(pages.fd(), F_DUPFD, 10)) + ":0";
      ::setenv(rendezvous::progress_page_variable, place.c_str(), 1);
      if (answers) ddprun::worker::answer_for_stacks();
      const ssize_t told = ::write(ready[1], "r", 1);
      for (;;) ::poll(nullptr, 0, told == 1 ? -1 : 1);
    }
    ::close(ready[1]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    // Its write is over for us before it is for the child, which then sleeps in poll alone.
    const auto until = std::chrono::steady_clock::now() + patience(10s);
    while (ddprun::testing::process_state(pid_) != 'S' && std::chrono::steady_clock::now() < until)
      ::poll(nullptr, 0, 1);
    REQUIRE(ddprun::testing::process_state(pid_) == 'S');
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  int pid() const { return pid_; }
  bool lives() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("17.2: a worker on this library answers with its stack, as often as it is asked",
          "[watch]") {
  const ProgressPages pages(1);
  const Child child(pages, /*answers=*/true);
  for (int i = 0; i < 3; ++i) {
    const auto asked = pages.ask_stack(0, child.pid());
    REQUIRE(asked);
    const auto until = std::chrono::steady_clock::now() + patience(10s);
    auto stack = pages.stack(0, *asked);
    while (!stack && std::chrono::steady_clock::now() < until) {
      ::poll(nullptr, 0, 1);
      stack = pages.stack(0, *asked);
    }
    REQUIRE(stack);
    INFO(*stack);
    CHECK(stack->find("poll") != std::string::npos);
    CHECK(stack->find("on_stack_wanted") == std::string::npos);
  }
  CHECK(child.lives());
}

TEST_CASE("17.2: a program that handles no such signal is sent none, whatever its page says",
          "[watch]") {
  const ProgressPages pages(1);
  const Child child(pages, /*answers=*/false);
  CHECK_FALSE(pages.ask_stack(0, child.pid()));
  {
    const Child other(pages, /*answers=*/true);
    CHECK_FALSE(pages.ask_stack(0, child.pid()));  // It is not the one that said so.
    CHECK(pages.ask_stack(0, other.pid()));
    CHECK_FALSE(pages.ask_stack(1, other.pid()));
    CHECK_FALSE(pages.ask_stack(-1, other.pid()));
  }
  CHECK(child.lives());
}

TEST_CASE("17.2: a Python stack says whether its main thread is in a collective", "[watch]") {
  using ddprun::launcher::is_in_collective;
  const std::string frame = "        all_reduce (torch/distributed/distributed_c10d.py:3)";
  CHECK(is_in_collective({"    Process 77: python3", "    Thread 77 (idle)", frame}));
  CHECK(is_in_collective(
      {"    Process 77: python3", "    Thread 0x7F1 (idle): \"MainThread\"", frame}));
  CHECK_FALSE(
      is_in_collective({"    Process 77: python3", "    Thread 77 (idle)", "        load (a.py:1)",
                        "    Thread 771 (idle): \"Thread-1\"", frame}));
  CHECK_FALSE(is_in_collective({"    thread 77 python3: in futex"}));
  CHECK_FALSE(is_in_collective({}));
}
