// Budget, backoff and progress of restarts: failures in, decisions out.
#include "rendezvous/job/restart_policy.h"

#include <csignal>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

FirstCause exit_code(int code, int rank = 0) { return {.rank = rank, .exit_code = code}; }

constexpr std::uint64_t seed = 7;

}  // namespace

TEST_CASE("every failure takes one restart from the budget", "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 2}, seed);

  CHECK(policy.on_failure(exit_code(1), 1min).reason == "restarting (1 of 2 restarts left)");
  CHECK(policy.on_failure(exit_code(1), 1min).reason == "restarting (0 of 2 restarts left)");
  const RestartDecision last = policy.on_failure(exit_code(1), 1min);
  CHECK_FALSE(last.restart);
  CHECK(last.reason == "no restarts are left");
}

TEST_CASE("who leads on with fewer restarts than were used has none left",
          "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 2}, seed);
  policy.resume(3);
  const RestartDecision decision = policy.on_failure(exit_code(1), 1min);
  CHECK_FALSE(decision.restart);
  CHECK(decision.reason == "no restarts are left");
}

TEST_CASE("a failure that another attempt cannot heal takes none", "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 2}, seed);

  CHECK_FALSE(policy.on_failure({.exit_code = 127, .retriable = false}, 0ms).restart);
}

TEST_CASE("17.1: what a worker was given wrong ends the job in its first attempt",
          "[rendezvous][restart]") {
  const FirstCause wrong{.exit_code = exit_status::usage, .usage_error = true};

  const RestartDecision decision = RestartPolicy({.restarts_max = 3}, seed).on_failure(wrong, 1s);

  CHECK_FALSE(decision.restart);
  INFO(decision.reason);
  CHECK(decision.reason.find("what it was given is wrong") != std::string::npos);
  CHECK(decision.reason.find("ends with 3 restarts left") != std::string::npos);
}

TEST_CASE("17.1: anything less than a wrong command of a first attempt is restarted",
          "[rendezvous][restart]") {
  const FirstCause wrong{.exit_code = exit_status::usage, .usage_error = true};
  std::vector<FirstCause> others(6, wrong);
  others[0].usage_error = false;  // argparse ends with 2, too.
  others[1].exit_code = 1;
  others[2].signal = 9;
  others[3].attempt = 1;
  others[4].kind = FirstCause::Kind::StartFailed;
  others[5].kind = FirstCause::Kind::NodeLost;

  for (const FirstCause& other : others) {
    INFO("case " << &other - others.data());
    CHECK(RestartPolicy({.restarts_max = 1}, seed).on_failure(other, 1s).restart);
  }
}

TEST_CASE("the first restart comes at once, further ones wait longer and longer",
          "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 20, .same_failures_max = 0}, seed);

  CHECK(policy.on_failure(exit_code(1), 2s).delay == 0ms);
  for (const Milliseconds whole : {500ms, 1'000ms, 2'000ms, 4'000ms, 8'000ms, 16'000ms}) {
    const RestartDecision next = policy.on_failure(exit_code(1), 2s);
    CHECK(next.delay >= whole / 2);
    CHECK(next.delay <= whole);
    CHECK(next.reason.find("restarting in ") == 0);
  }
  for (int i = 0; i < 10; ++i) {
    const RestartDecision next = policy.on_failure(exit_code(1), 2s);
    CHECK(next.delay >= 15s);
    CHECK(next.delay <= 30s);
  }
}

TEST_CASE("a healthy attempt ends the row: the next restart comes at once",
          "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 20}, seed);

  policy.on_failure(exit_code(1), 2s);
  CHECK(policy.on_failure(exit_code(2), 2s).delay > 0ms);
  CHECK(policy.on_failure(exit_code(1), 60s).delay == 0ms);
  CHECK(policy.on_failure(exit_code(2), 2s).delay > 0ms);
}

TEST_CASE("an attempt that got further ends the row, however short it was",
          "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 20, .same_failures_max = 3}, seed);

  policy.on_failure(exit_code(1), 2s);
  CHECK(policy.on_failure(exit_code(1), 2s).delay > 0ms);
  for (int i = 0; i < 5; ++i) {
    const RestartDecision next = policy.on_failure(exit_code(1), 2s, /*progressed=*/true);
    CHECK(next.restart);  // Five alike, but not of a job that stands still.
    CHECK(next.delay == 0ms);
  }
  CHECK(policy.on_failure(exit_code(1), 2s).delay > 0ms);
}

TEST_CASE("16.3: one loss in a row that no program had a part in is not counted",
          "[rendezvous][restart]") {
  const FirstCause killed{.rank = 1, .signal = SIGKILL}, lost{.kind = FirstCause::Kind::NodeLost};
  FirstCause full = killed, hung = killed;
  full.oom_killed = true;
  hung.hung_ms = 60'000;
  const auto delay = [](RestartPolicy& policy, const FirstCause& cause, bool progressed = false) {
    return policy.on_failure(cause, 2s, progressed).delay;
  };

  SECTION("whichever of the two comes first") {
    for (const auto& [first, second] :
         {std::pair{killed, lost}, std::pair{lost, killed}, std::pair{exit_code(1), lost},
          std::pair{lost, exit_code(1)}}) {
      RestartPolicy policy({.restarts_max = 20}, seed);
      CHECK(delay(policy, first) == 0ms);
      CHECK(delay(policy, second) == 0ms);
      CHECK(delay(policy, killed) > 0ms);
    }
  }
  SECTION("what the kernel kills for its memory, or ddprun because it hangs, is the program's") {
    for (const FirstCause& own : {full, hung}) {
      RestartPolicy policy({.restarts_max = 20}, seed);
      CHECK(delay(policy, own) == 0ms);
      CHECK(delay(policy, own) > 0ms);
    }
  }
  SECTION("another row has another one") {
    RestartPolicy policy({.restarts_max = 20}, seed);
    for (int i = 0; i < 3; ++i) {
      CHECK(delay(policy, killed, /*progressed=*/true) == 0ms);
      CHECK(delay(policy, killed) == 0ms);
      CHECK(delay(policy, killed) > 0ms);
    }
  }
  SECTION("but not another coordinator") {
    RestartPolicy policy({.restarts_max = 20}, seed);
    policy.resume(1, 1);
    CHECK(delay(policy, lost) > 0ms);
  }
}

TEST_CASE("nodes that come and go make attempts wait as failures do, and use no restart",
          "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 20}, seed);

  CHECK(policy.on_departure(2s, /*progressed=*/false) == 0ms);
  const Milliseconds second = policy.on_departure(2s, /*progressed=*/false);
  CHECK(second >= 250ms);
  CHECK(second <= 500ms);
  CHECK(policy.on_departure(2s, /*progressed=*/true) == 0ms);
  CHECK(policy.on_failure(exit_code(1), 2s).delay > 0ms);  // Of the same row.
  CHECK(policy.on_departure(60s, /*progressed=*/false) == 0ms);
  CHECK(policy.used() == 1);
}

TEST_CASE("without backoff no restart waits", "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 9, .backoff_first = 0ms, .same_failures_max = 0}, seed);

  for (int i = 0; i < 9; ++i) CHECK(policy.on_failure(exit_code(1), 1s).delay == 0ms);
}

TEST_CASE("jobs that fail together do not come back together", "[rendezvous][restart]") {
  std::set<std::int64_t> delays;
  for (std::uint64_t job = 0; job < 100; ++job) {
    RestartPolicy policy({.restarts_max = 9}, job);
    policy.on_failure(exit_code(1), 2s);
    delays.insert(policy.on_failure(exit_code(2), 2s).delay.count());
  }
  CHECK(delays.size() > 50);
}

TEST_CASE("the same quick failure again and again stops the job early", "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 9, .same_failures_max = 3}, seed);

  CHECK(policy.on_failure(exit_code(1), 2s).restart);
  CHECK(policy.on_failure(exit_code(1), 3s).restart);
  const RestartDecision third = policy.on_failure(exit_code(1), 2s);
  CHECK_FALSE(third.restart);
  INFO(third.reason);
  CHECK(third.reason.find("the same 3 times in a row") == 0);
  CHECK(third.reason.find("7 restarts left") != std::string::npos);
}

TEST_CASE("what ends differently, at another worker or late is not the same failure",
          "[rendezvous][restart]") {
  const RestartLimits limits{.restarts_max = 99, .same_failures_max = 2};
  RestartPolicy by_code(limits, seed), by_rank(limits, seed), late(limits, seed);
  RestartPolicy by_signal(limits, seed), by_host(limits, seed), by_words(limits, seed);
  RestartPolicy by_kind(limits, seed);

  for (int i = 0; i < 10; ++i) {
    const bool odd = i % 2 == 1;
    FirstCause said = exit_code(1, odd ? 1 : 0);
    said.last_stderr = odd ? "disk full\n" : "connection refused\n";
    CHECK(by_code.on_failure(exit_code(i % 2 + 1), 2s).restart);
    CHECK(by_rank.on_failure(exit_code(1, i % 2), 2s).restart);
    CHECK(late.on_failure(exit_code(1), i % 2 == 0 ? 2s : 10s).restart);
    CHECK(by_signal.on_failure({.rank = 1, .signal = odd ? SIGSEGV : SIGABRT}, 2s).restart);
    CHECK(by_host.on_failure({.host = odd ? "a" : "b", .rank = 1, .exit_code = 1}, 2s).restart);
    CHECK(by_words.on_failure(said, 2s).restart);
    const auto kind = odd ? FirstCause::Kind::WorkerFailed : FirstCause::Kind::StartFailed;
    CHECK(by_kind.on_failure({.kind = kind, .rank = 1, .exit_code = 1}, 2s).restart);
  }
}

TEST_CASE("workers that all fail with the same last words count as one", "[rendezvous][restart]") {
  RestartPolicy policy({.restarts_max = 9, .same_failures_max = 2}, seed);
  FirstCause first = exit_code(1, 0), second = exit_code(1, 5);
  first.last_stderr = "at 12:00:01\nModuleNotFoundError: No module named 'x'\n";
  second.last_stderr = "at 12:00:09\nModuleNotFoundError: No module named 'x'";

  CHECK(policy.on_failure(first, 2s).restart);
  CHECK_FALSE(policy.on_failure(second, 2s).restart);
}

TEST_CASE("an attempt that ran long enough gives the whole budget back, if asked to",
          "[rendezvous][restart]") {
  RestartPolicy forgiving({.restarts_max = 1, .forgive_after = 1h}, seed);
  RestartPolicy strict({.restarts_max = 1}, seed);

  for (int i = 0; i < 3; ++i) CHECK(forgiving.on_failure(exit_code(1), 2h).restart);
  CHECK_FALSE(forgiving.on_failure(exit_code(1), 59min).restart);
  CHECK(strict.on_failure(exit_code(1), 2h).restart);
  CHECK_FALSE(strict.on_failure(exit_code(1), 2h).restart);
}
