// Looking names up beside the event loop.
#include "rendezvous/control/resolve.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"

using namespace ddprun::rendezvous;

namespace {

// Descriptors that a program started now would inherit.
std::set<int> inherited() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) found.insert(fd);
  }
  return found;
}

int event_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // The listing's own, or a look-up's file.
    count += std::filesystem::read_symlink(entry, gone) == "anon_inode:[eventfd]" ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("where no thread is to be had a name is not looked up, and signals are heard",
          "[resolve]") {
  if (::geteuid() != 0) DDPRUN_SKIP("to become a user with a limit of its own one must be root");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{1, 1};
    if (::setuid(54'321) != 0 || ::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(2);
    asio::io_context io;
    Resolved resolved;
    asio::co_spawn(
        io, [&]() -> asio::awaitable<void> { resolved = co_await resolve("localhost"); },
        [](const std::exception_ptr& thrown) {
          if (thrown) ::_exit(3);
        });
    io.run();
    sigset_t blocked;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    if (sigismember(&blocked, SIGTERM) == 1) ::_exit(4);
    ::_exit(resolved.error.empty() ? 5 : 0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("who asks for a name that is being looked up hears the same answer", "[resolve]") {
  asio::io_context io;
  int answers = 0;
  const auto ask = [&]() -> asio::awaitable<void> {
    const Resolved resolved = co_await resolve("localhost");
    if (!resolved.addresses.empty()) ++answers;
  };
  const asio::posix::stream_descriptor any(io);  // With what the loop itself needs.
  const int before = event_descriptors();

  for (int asked = 0; asked < 3; ++asked) asio::co_spawn(io, ask, asio::detached);
  for (int begun = 0; begun < 3; ++begun) io.run_one();

  CHECK(event_descriptors() == before + 1 + 3);  // One look-up, for which each waits.
  io.run();
  CHECK(answers == 3);
}

TEST_CASE("a worker that is started while a name is looked up inherits nothing of that",
          "[resolve]") {
  const std::set<int> before = inherited();
  asio::io_context io;
  bool done = false;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        const Resolved resolved = co_await resolve("localhost");
        INFO(resolved.error);
        CHECK_FALSE(resolved.addresses.empty());
        done = true;
      },
      asio::detached);

  while (!done && io.run_one() > 0) CHECK(inherited() == before);

  CHECK(done);
}

TEST_CASE("where no descriptor is left a name is not looked up, and the reason is told",
          "[resolve]") {
  Resolved resolved;
  const bool tried =
      ddprun::testing::with_failing_calls({{__NR_fcntl, 1, F_DUPFD_CLOEXEC}}, EMFILE, [&] {
        asio::io_context io;
        asio::co_spawn(
            io, [&]() -> asio::awaitable<void> { resolved = co_await resolve("localhost"); },
            asio::detached);
        io.run();
      });
  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
  INFO(resolved.error);
  CHECK(resolved.error.find("Too many open files") != std::string::npos);
}
