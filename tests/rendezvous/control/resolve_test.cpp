// Looking names up beside the event loop.
#include "rendezvous/control/resolve.h"

#include <fcntl.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <filesystem>
#include <set>
#include <string>

#include "tests/testing/catch.h"

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

}  // namespace

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
