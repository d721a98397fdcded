// What a check says of its node, with real shells.
#include "launcher/node_check.h"

#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "launcher/processes/child_sessions.h"
#include "tests/testing/catch.h"
#include "tests/testing/debugger.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using ddprun::testing::content_of;
using ddprun::testing::Debugger;
using ddprun::testing::patience;

namespace {

NodeCheck::Result result_of(const std::string& command, std::chrono::milliseconds limit = 60s) {
  asio::io_context io;
  NodeCheck check(io, command, limit);
  std::optional<NodeCheck::Result> result;
  check.start([&](const NodeCheck::Result& told) { result = told; });
  CHECK_FALSE(result);  // Never from within.
  io.run_for(patience(60s));
  REQUIRE(result);
  return *result;
}

}  // namespace

TEST_CASE("a check that ends with 0 says that its node is fit", "[launcher][node_check]") {
  const auto result = result_of("echo fine; echo warning >&2");
  CHECK(result.unfit.empty());
  CHECK(result.output == "fine\nwarning\n");
}

TEST_CASE("a check says what is wrong in its last line, on stderr where it has one",
          "[launcher][node_check]") {
  CHECK(result_of("exit 3").unfit == "its --node-check ended with 3");
  CHECK(result_of("echo one; echo two; exit 1").unfit == "its --node-check ended with 1: two");
  CHECK(result_of("echo no >&2; echo two; exit 1").unfit == "its --node-check ended with 1: no");
  CHECK(result_of("printf 'a\\r\\nlast \\r\\n\\n'; exit 1").unfit ==
        "its --node-check ended with 1: last");
  CHECK(contains(result_of("there-is-no-such-program").unfit, "its --node-check ended with 127: "));
  CHECK(result_of("kill -SEGV $$").unfit == "its --node-check was killed by SIGSEGV");
}

TEST_CASE("a check that does not end is killed with what it has started",
          "[launcher][node_check]") {
  const auto result = result_of("trap '' TERM; echo waits; sleep 1000 & wait", 200ms);
  CHECK(result.unfit == "its --node-check did not end within 200 ms: waits");
  CHECK(result.took >= 200ms);
}

TEST_CASE("a check has nothing to read, and of what it writes the end is kept",
          "[launcher][node_check]") {
  CHECK(result_of("read line || exit 4").unfit == "its --node-check ended with 4");
  const auto result = result_of("head -c 100000 /dev/zero | tr '\\0' x; echo end; exit 1");
  CHECK(result.unfit == "its --node-check ended with 1: " + std::string(400, 'x'));
  CHECK(result.output.size() == 8'192);
}

TEST_CASE("what a check says may be read anywhere", "[launcher][node_check]") {
  CHECK(result_of("printf 'a\\033[2Jb\\377\\n'; exit 1").unfit ==
        "its --node-check ended with 1: a^[[2Jb?");
}

TEST_CASE("the options of a job are none of a ddprun that its check asks",
          "[launcher][node_check]") {
  ::setenv("PET_HOSTS", "a,b", 1);
  CHECK(result_of("test -z \"$PET_HOSTS\" && test -n \"$PATH\"").unfit.empty());
  ::unsetenv("PET_HOSTS");
}

TEST_CASE("a check that SIGKILL does not end is waited for no longer than its limit, nor spun for",
          "[launcher][node_check]") {
  const ddprun::testing::TemporaryFolder folder;
  asio::io_context io;
  NodeCheck check(io, "echo $$ > " + (folder / "pid") + "; exec sleep 1000", patience(1s), 300ms);
  std::optional<NodeCheck::Result> result;
  check.start([&](const NodeCheck::Result& told) { result = told; });
  const auto run_until = [&](const std::function<bool()>& done) {
    int steps = 0;
    const auto end = std::chrono::steady_clock::now() + patience(60s);
    while (!done() && std::chrono::steady_clock::now() < end)
      steps += static_cast<int>(io.run_one_for(50ms));
    REQUIRE(done());
    return steps;
  };
  int pid = 0;
  run_until([&] { return (pid = std::atoi(content_of(folder / "pid").c_str())) != 0; });
  Debugger debugger(pid);
  if (debugger.holds()) {
    CHECK(run_until([&] { return result.has_value(); }) < 100);  // Spinning takes thousands.
    CHECK(contains(result->unfit, ", nor of SIGKILL"));
    CHECK_FALSE(check.is_running());
    CHECK(read_process(pid).state == 'Z');
  }
  debugger.release();
  if (!debugger.holds()) DDPRUN_SKIP("ptrace is not permitted");
  run_until([&] { return read_process(pid).pid == 0; });  // Reaped after all.
}

TEST_CASE("of a check that is asked for anew the first one does not tell",
          "[launcher][node_check]") {
  asio::io_context io;
  NodeCheck check(io, "sleep 1000", 200ms);
  int first = 0, second = 0;
  check.start([&](const NodeCheck::Result&) { ++first; });
  check.start([&](const NodeCheck::Result&) { ++second; });
  io.run_for(patience(60s));
  CHECK(first == 0);
  CHECK(second == 1);
}
