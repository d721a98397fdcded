// Deaths as the kernel marks them in the words of robust locks.
#include "launcher/processes/life_watch.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "launcher/processes/child_sessions.h"
#include "launcher/status/progress_pages.h"
#include "rendezvous/contract/life_page.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;

namespace {

bool kernel_waits_for_several() {
  return ::syscall(449, nullptr, 0, 0, nullptr, 0) != 0 && errno != ENOSYS;
}

// What was told, in order.
class Told {
 public:
  std::function<void(int)> listener() {
    return [this](int tid) {
      const std::lock_guard lock(mutex_);
      tids_.push_back(tid);
      changed_.notify_all();
    };
  }
  std::vector<int> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, ddprun::testing::patience(std::chrono::seconds(10)),
                      [&] { return tids_.size() >= count; });
    return tids_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> tids_;
};

// The watch has seen who holds it: nobody can tell of a holder that died before.
void wait_until_watched(std::uint32_t* word) {
  const auto limit =
      std::chrono::steady_clock::now() + ddprun::testing::patience(std::chrono::seconds(10));
  while ((std::atomic_ref(*word).load() & FUTEX_WAITERS) == 0) {
    if (std::chrono::steady_clock::now() > limit) return;
    std::this_thread::yield();
  }
}

// A process whose main thread holds the lock with this word, as a worker does; it holds it when
// this returns. `then`: what it does besides waiting for its end.
int start_holder(
    std::uint32_t* word, void (*then)() = [] {}) {
  auto* const lock = reinterpret_cast<pthread_mutex_t*>(word);  // Whose first member the word is.
  int ready[2];
  if (::pipe(ready) != 0) return -1;
  const int pid = ::fork();
  if (pid == 0) {
    const int got = ::pthread_mutex_trylock(lock);
    if (got == EOWNERDEAD) ::pthread_mutex_consistent(lock);
    ::syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    const char byte = got == 0 || got == EOWNERDEAD ? 'x' : '?';
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    then();
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  CHECK(::read(ready[0], &byte, 1) == 1);
  CHECK(byte == 'x');
  ::close(ready[0]);
  return pid;
}

void reap(int pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// Some 50 ms of work for the kernel when the process ends; huge pages would be given back at once.
void touch_much_memory() {
  constexpr std::size_t bytes = 512u << 20;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ::madvise(memory, bytes, MADV_NOHUGEPAGE) != 0) ::_exit(1);
  for (std::size_t i = 0; i < bytes; i += 4096) static_cast<volatile char*>(memory)[i] = 1;
}

}  // namespace

TEST_CASE("16.5: holders of locks that die are told, one after the other in one place",
          "[life_watch]") {
  if (!kernel_waits_for_several()) DDPRUN_SKIP("this kernel cannot wait for several words");
  const ProgressPages pages(3);
  Told told;
  const LifeWatch watch(pages.life_words(), told.listener());

  const int first = start_holder(pages.life_words()[1]);
  wait_until_watched(pages.life_words()[1]);
  reap(first);
  CHECK(told.wait_for(1) == std::vector{first});

  const int second = start_holder(pages.life_words()[1]);
  const int other = start_holder(pages.life_words()[2]);
  wait_until_watched(pages.life_words()[1]);
  wait_until_watched(pages.life_words()[2]);
  reap(second);
  CHECK(told.wait_for(2) == std::vector{first, second});
  reap(other);
  CHECK(told.wait_for(3) == std::vector{first, second, other});
}

TEST_CASE("16.5: a holder from before the watch began is watched, too", "[life_watch]") {
  if (!kernel_waits_for_several()) DDPRUN_SKIP("this kernel cannot wait for several words");
  const ProgressPages pages(1);
  const int holder = start_holder(pages.life_words()[0]);
  Told told;
  const LifeWatch watch(pages.life_words(), told.listener());

  wait_until_watched(pages.life_words()[0]);
  reap(holder);

  CHECK(told.wait_for(1) == std::vector{holder});
}

TEST_CASE("16.5: a death is told, with its signal, while the kernel takes the process apart",
          "[life_watch]") {
  if (!kernel_waits_for_several()) DDPRUN_SKIP("this kernel cannot wait for several words");
  bool before_it_was_gone = false;
  // Once is enough: on a busy machine the kernel may be done before this process has its turn.
  for (int round = 0; round < 20 && !before_it_was_gone; ++round) {
    const ProgressPages pages(1);
    Told told;
    const LifeWatch watch(pages.life_words(), told.listener());
    // Touched first: the wait for `ready` ends with it.
    int touched[2];
    REQUIRE(::pipe(touched) == 0);
    static int touched_end;
    touched_end = touched[1];
    const int holder = start_holder(pages.life_words()[0], [] {
      touch_much_memory();
      const char byte = 'x';
      if (::write(touched_end, &byte, 1) != 1) ::_exit(1);
    });
    char byte = 0;
    REQUIRE(::read(touched[0], &byte, 1) == 1);
    ::close(touched[0]);
    ::close(touched[1]);
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, holder, 0));

    wait_until_watched(pages.life_words()[0]);
    ::kill(holder, SIGKILL);

    CHECK(told.wait_for(1) == std::vector{holder});
    const auto status = read_coming_status(holder);
    REQUIRE(status);
    CHECK(status->signal == SIGKILL);
    pollfd end{pidfd, POLLIN, 0};
    before_it_was_gone = ::poll(&end, 1, 0) == 0;
    ::close(pidfd);
    reap(holder);
  }
  CHECK(before_it_was_gone);
}

TEST_CASE("16.5: only an end that is coming, and a failure, is foreseen", "[life_watch]") {
  const int living = ::fork();
  if (living == 0) {
    for (;;) ::pause();
  }
  CHECK_FALSE(read_coming_status(living));
  reap(living);
  CHECK_FALSE(read_coming_status(living));

  for (const int code : {0, 3}) {
    const int pid = ::fork();
    if (pid == 0) ::_exit(code);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);  // Ended, and not reaped.
    const auto status = read_coming_status(pid);
    CHECK(status.has_value() == (code != 0));
    if (status) CHECK(status->exit_code == code);
    ::waitpid(pid, nullptr, 0);
  }
}

TEST_CASE("a watch that gets no thread says what could not be had", "[life_watch]") {
  const ProgressPages pages(1);
  bool tried = false;
  const auto message = [&](int error) {
    std::string said;
    tried = ddprun::testing::with_failing_calls({{__NR_clone3}, {__NR_clone}}, error, [&] {
      said = ddprun::testing::message_of<std::system_error>(
          [&] { const LifeWatch watch(pages.life_words(), [](int) {}); });
    });
    return said;
  };
  const std::string limited = message(EAGAIN);
  const std::string refused = message(EPERM);  // By a container's rules, and no limit.
  if (!tried) DDPRUN_SKIP("this kernel or container has no seccomp filters");
  CHECK(limited.starts_with("cannot start a thread (ulimit -u, ulimit -d): "));
  CHECK(refused == "cannot start a thread: Operation not permitted");
}

TEST_CASE("16.5: a holder that becomes another program is told of, but goes on", "[life_watch]") {
  if (!kernel_waits_for_several()) DDPRUN_SKIP("this kernel cannot wait for several words");
  const ProgressPages pages(1);
  Told told;
  const LifeWatch watch(pages.life_words(), told.listener());

  static std::uint32_t* word;
  word = pages.life_words()[0];
  const int holder = start_holder(word, [] {
    wait_until_watched(word);
    ::execl("/bin/sleep", "sleep", "600", nullptr);
  });

  CHECK(told.wait_for(1) == std::vector{holder});
  CHECK_FALSE(read_coming_status(holder));
  reap(holder);
}
