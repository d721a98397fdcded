// The node's end of its connection, in a process of its own, whose stdin it takes.
#include "launcher/hosts/node_channel.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <functional>
#include <string>
#include <system_error>

#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::UniqueFd;
using ddprun::testing::contains;

namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  UniqueFd read, write;
};

void put(const UniqueFd& fd, const std::string& text) {
  REQUIRE(::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// What `use` answers of a node that is told this, or what it throws.
std::string answer_of(const std::string& told,
                      const std::function<std::string(NodeChannel& channel)>& use) {
  Pipe input, answer;
  put(input.write, told);
  const int pid = ::fork();
  if (pid == 0) {
    ::dup2(input.read.get(), STDIN_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    input.write.reset();
    std::string said;
    try {
      NodeChannel channel("1.0");
      said = use(channel);
    } catch (const std::exception& error) {
      said = error.what();
    }
    ::_exit(::write(answer.write.get(), said.data(), said.size()) < 0 ? 1 : 0);
  }
  input.write.reset();
  answer.write.reset();
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = ::read(answer.read.get(), buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<std::size_t>(n));
  }
  ::waitpid(pid, nullptr, 0);
  return said;
}

NodeRequest request(bool has_secret) {
  return {.mark = "m",
          .folder = "/",
          .variables = {},
          .arguments = {"true"},
          .has_secret = has_secret,
          .is_host = std::nullopt};
}

std::string secret_of(NodeChannel& channel) {
  std::string secret(64 << 10, ' ');
  const ssize_t size = ::read(channel.secret_fd(), secret.data(), secret.size());
  return secret.substr(0, size > 0 ? static_cast<std::size_t>(size) : 0);
}

}  // namespace

TEST_CASE("17.3: a secret comes whole, or it is said why not", "[hosts]") {
  const std::string line = to_line(request(true));
  const std::string longest(8192, 's');
  CHECK(answer_of(line + longest + "\n", secret_of) == longest);
  CHECK(contains(answer_of(line + longest + "s\n", secret_of),
                 "was given a secret of more than 8192 bytes"));
  CHECK(contains(answer_of(line + "half", secret_of), "that one is gone"));
}

TEST_CASE("17.3: a node that has no descriptor to watch its starter by says so", "[hosts]") {
  const std::string said = answer_of(to_line(request(false)), [](NodeChannel& channel) {
    asio::io_context io;
    const bool tried = ddprun::testing::with_failing_calls(
        {{__NR_fcntl, 1, F_DUPFD_CLOEXEC}}, EMFILE, [&] { channel.watch(io, {}, {}); });
    return std::string(tried ? "watches" : "no seccomp");
  });
  if (said == "no seccomp") DDPRUN_SKIP("this kernel has no seccomp");
  CHECK(contains(said, "Too many open files"));
}
