// A wait that takes long is told of, once, with who keeps this rank, before it ends with an error.
#include "worker/peers/slow_wait.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <future>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "worker/peers/blame.h"

using namespace ddprun::worker;
using ddprun::testing::contains;
using namespace std::chrono_literals;

namespace {

CommunicatorOptions options_with(std::chrono::milliseconds slow, std::chrono::milliseconds timeout,
                                 std::function<void(const std::string&)> tell) {
  CommunicatorOptions options;
  options.slow_wait = slow;
  options.collective_timeout = timeout;
  options.collective_timeout_name = "--collective-timeout";
  options.on_slow_wait = std::move(tell);
  return options;
}

}  // namespace

TEST_CASE("a wait is told of once, when it is slow and its timeout is still far", "[worker]") {
  const SlowWaitLimits limits{.slow = 30s, .timeout = 600s};
  CHECK_FALSE(slow_wait_is_due(0ms, false, limits));
  CHECK_FALSE(slow_wait_is_due(29'999ms, false, limits));
  CHECK(slow_wait_is_due(30s, false, limits));
  CHECK(slow_wait_is_due(500s, false, limits));
  CHECK_FALSE(slow_wait_is_due(500s, true, limits));
  // The error itself comes as soon.
  CHECK_FALSE(slow_wait_is_due(30s, false, {.slow = 30s, .timeout = 30s}));
  CHECK_FALSE(slow_wait_is_due(30s, false, {.slow = 30s, .timeout = 5s}));
}

TEST_CASE("a sleep ends when the wait becomes slow, and then at its deadline", "[worker]") {
  const SlowWaitTeller teller(options_with(30s, 600s, {}));
  const SlowWaitTeller::Clock::time_point since{1000s};
  CHECK(teller.next_look(since, false, since + 600s) == since + 30s);
  CHECK(teller.next_look(since, true, since + 600s) == since + 600s);
  CHECK(teller.next_look(since, false, since + 10s) == since + 10s);
}

TEST_CASE("what is told names the call, the cause and the limit with its option", "[worker]") {
  std::string told;
  const SlowWaitTeller teller(
      options_with(30s, 600s, [&](const std::string& text) { told = text; }));
  teller.tell(2, 30'400ms, "barrier(), call 17", "rank 1 is late");
  CHECK(told ==
        "rank 2 has waited for 30 s in barrier(), call 17: rank 1 is late; it gives up after 600 s "
        "(--collective-timeout sets the limit)");
  CHECK(teller.timed_out() == "timed out after 600 s (--collective-timeout sets the limit)");
}

TEST_CASE("those who are blamed have their hosts in the message", "[worker]") {
  const Blame blame{.silent = {1}, .absent = {2}};
  const std::vector<std::string> ranks = {"", "rank 1 (pid 7 on a)", "rank 2 (pid 8 on b)"};
  CHECK(contains(to_string(blame, ranks), "rank 1 (pid 7 on a) did not answer"));
  CHECK(contains(to_string(blame, ranks), "rank 2 (pid 8 on b) did not call it"));
  CHECK(contains(to_string(blame), "rank 1 did not answer"));
}

TEST_CASE("a rank that comes late is told of once on each that waits, and the call goes on",
          "[worker][communicator]") {
  for (const Wiring wiring : wirings) {
    std::counting_semaphore<> told(0);  // Rank 1 calls only when both are.
    std::array<std::string, 3> texts;
    std::array<int, 3> times{};   // Of rank 1: on a busy machine any of the three may be slow, too.
    std::array<float, 3> sums{};  // CHECK is for one thread.
    Cluster cluster{.world = 3, .wiring = wiring, .collective_timeout = 600s};
    cluster.slow_wait = 20ms;
    cluster.on_slow_wait = [&](int rank, const std::string& text) {
      if (!contains(text, "did not call it") || !contains(text, "rank 1 (pid ")) return;
      texts.at(static_cast<std::size_t>(rank)) = text;
      if (++times.at(static_cast<std::size_t>(rank)) == 1) told.release();
    };
    const auto errors = spawn(cluster, [&](Communicator& comm) {
      if (comm.rank() == 1) acquire(told, 2);
      std::vector<float> data(1000, 1.0f);
      comm.all_reduce(data.data(), data.size(), DataType::Float32, ReduceOp::Sum);
      sums.at(static_cast<std::size_t>(comm.rank())) = data.front();
    });

    CHECK(errors == std::vector<std::string>(3));
    CHECK(sums == std::array{3.0f, 3.0f, 3.0f});
    for (const std::size_t rank : {0u, 2u}) {
      INFO(name_of(wiring) << ": " << texts[rank]);
      CHECK(times[rank] == 1);
      CHECK(contains(texts[rank], "all_reduce(count=1000, float32, sum)"));
      CHECK(contains(texts[rank], "gives up after 600 s"));
    }
  }
}

TEST_CASE("a stopped process is named while the others wait for it", "[worker][communicator]") {
  for (const Wiring wiring : wirings) {
    const auto board = MappedExchange::create(2);
    const pid_t child = ::fork();
    if (child == 0) {
      {
        const auto comm = connect_rank({.wiring = wiring}, 1, board);
        comm->barrier();
        ::raise(SIGSTOP);
        comm->barrier();
      }  // With a goodbye: who just exits may take the barrier's end from its peer.
      ::_exit(0);
    }
    Cluster cluster{.wiring = wiring};
    cluster.slow_wait = 20ms;
    std::string told;
    cluster.on_slow_wait = [&](int, const std::string& text) {
      if (!contains(text, "call 2")) return;  // Of the first no stop has been seen yet.
      told = text;
      ::kill(child, SIGCONT);
    };
    {
      const auto comm = connect_rank(cluster, 0, board);
      comm->barrier();
      ::waitpid(child, nullptr, WUNTRACED);
      comm->barrier();
    }
    int status = -1;
    ::waitpid(child, &status, 0);

    INFO(name_of(wiring) << ": " << told);
    CHECK(status == 0);
    CHECK(contains(told, "in barrier(), call 2: rank 1 (pid " + std::to_string(child)));
    CHECK(contains(told, "did not answer (stopped"));
  }
}
