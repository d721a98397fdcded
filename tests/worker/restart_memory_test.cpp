// Memory that outlives the process which writes it, whenever that is killed.
#include "worker/restart_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include "rendezvous/contract/restart_memory_place.h"
#include "tests/testing/catch.h"

using ddprun::rendezvous::restart_memory_variable;
using ddprun::worker::RestartMemory;

namespace {

// What a launcher makes, of two pages for each half.
struct Memory {
  Memory() : fd(::memfd_create("test", MFD_CLOEXEC)) {
    if (::ftruncate(fd, 4 * 4096) != 0) throw 0;
  }
  ~Memory() { ::close(fd); }
  RestartMemory map() const { return std::move(*RestartMemory::map(fd)); }
  int fd;
};

void put(RestartMemory& memory, const std::string& text) {
  memory.begin();
  REQUIRE(memory.add(text.data(), text.size()));
  memory.commit();
}

std::vector<std::string> texts(const RestartMemory& memory) {
  std::vector<std::string> result;
  for (const auto content : memory.contents()) result.emplace_back(content);
  return result;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("the two newest contents are there, the newest first", "[worker][restart_memory]") {
  const Memory file;
  RestartMemory memory = file.map();
  CHECK(memory.contents().empty());
  put(memory, "one");
  CHECK(texts(memory) == Texts{"one"});
  put(memory, "two");
  CHECK(texts(memory) == Texts{"two", "one"});
  put(memory, "three");
  CHECK(texts(file.map()) == Texts{"three", "two"});  // Whoever maps it.
  memory.clear();
  CHECK(memory.contents().empty());
  put(memory, "again");
  CHECK(texts(memory) == Texts{"again"});
}

TEST_CASE("a process that is killed while it writes leaves the newer content",
          "[worker][restart_memory]") {
  const Memory file;
  {
    RestartMemory memory = file.map();
    put(memory, "one");
    put(memory, "two");
  }
  const pid_t writer = ::fork();
  if (writer == 0) {
    RestartMemory memory = file.map();
    memory.begin();
    memory.add("thr", 3);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(writer, nullptr, 0);
  RestartMemory memory = file.map();
  CHECK(texts(memory) == Texts{"two"});
  put(memory, "three");
  CHECK(texts(memory) == Texts{"three", "two"});
}

TEST_CASE("after the last number there is, both contents are there still",
          "[worker][restart_memory]") {
  const Memory file;
  RestartMemory memory = file.map();
  put(memory, "one");
  const std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  REQUIRE(::pwrite(file.fd, &last, sizeof last, 0) == sizeof last);
  put(memory, "two");
  CHECK(texts(memory) == Texts{"two", "one"});
  put(memory, "three");
  CHECK(texts(memory) == Texts{"three", "two"});
}

TEST_CASE("what does not fit is refused, and costs the older content alone",
          "[worker][restart_memory]") {
  const Memory file;
  RestartMemory memory = file.map();
  const std::string full(memory.bytes_max(), 'x');
  put(memory, full);
  put(memory, "two");
  memory.begin();
  CHECK(memory.add(full.data(), full.size()));
  CHECK_FALSE(memory.add("y", 1));
  CHECK(memory.overwrite("yy", 2, full.size() - 2));
  CHECK_FALSE(memory.overwrite("yy", 2, full.size() - 1));
  CHECK(texts(memory) == Texts{"two"});
}

TEST_CASE("a process without such memory is told so", "[worker][restart_memory]") {
  CHECK_FALSE(RestartMemory::of_launcher());
  CHECK_FALSE(RestartMemory::map(-1));
  const int empty = ::memfd_create("test", MFD_CLOEXEC);
  CHECK_FALSE(RestartMemory::map(empty));
  ::close(empty);
}

TEST_CASE("of the processes that have the launcher's memory one at a time is to write",
          "[worker][restart_memory]") {
  const Memory file;
  ::setenv(restart_memory_variable, std::to_string(file.fd).c_str(), 1);
  // Whether another process that has the descriptor by birth, as workers do, becomes the writer.
  const auto another_one = [] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(RestartMemory::become_writer() ? 0 : 1);
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  CHECK(another_one());  // And it has ended.
  CHECK(RestartMemory::become_writer());
  CHECK(RestartMemory::become_writer());  // As after a recovery in place.
  CHECK_FALSE(another_one());
  ::unsetenv(restart_memory_variable);
  CHECK_FALSE(RestartMemory::become_writer());
}
