// The tutorial on messages, as its head says to run it.
#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 60s;

void check_said(const std::string& output) {
  INFO(output);
  CHECK(contains(output, "rank 0 has the number 1"));
  CHECK(contains(output, "rank 1 has the number 1"));
  CHECK(contains(output, "rank 0 has 1000000 numbers, the last 1.5"));
  CHECK(contains(output, "rank 1 has 1000000 numbers, the last 0.5"));
}

}  // namespace

TEST_CASE("the send/recv tutorial runs under the launcher and by hand") {
  const auto launched =
      run(launch({"--standalone", "--nproc-per-node", "2", binary("send_recv")}), limit);
  CHECK(launched.status == 0);
  check_said(launched.output);

  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  Process second({binary("send_recv"), url, "1", "2"});
  Process first({binary("send_recv"), url, "0", "2"});
  const auto one = first.wait(limit), two = second.wait(limit);
  CHECK(one.status == 0);
  CHECK(two.status == 0);
  check_said(one.output + two.output);
}

TEST_CASE("the send/recv tutorial runs with any even number of workers") {
  for (const int workers : {4, 70}) {  // And with more than a word has bits.
    const auto result = run(
        launch({"--standalone", "--nproc-per-node", std::to_string(workers), binary("send_recv")}),
        limit);
    CHECK(result.status == 0);
    check_said(result.output);
    const std::string last = std::to_string(workers - 1), other = std::to_string(workers - 2);
    CHECK(contains(result.output, "rank " + last + " has the number 1"));
    CHECK(
        contains(result.output, "rank " + other + " has 1000000 numbers, the last " + last + ".5"));
    CHECK(
        contains(result.output, "rank " + last + " has 1000000 numbers, the last " + other + ".5"));
  }
}

TEST_CASE("the send/recv tutorial says that it is for an even number of workers") {
  const auto alone = run({binary("send_recv")}, limit);
  CHECK(alone.status == 2);
  CHECK(contains(alone.output, "for pairs of workers, not for 1"));
}
