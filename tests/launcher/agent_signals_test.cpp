// What each signal is for. That real ones arrive is seen in agent_test.cpp and end_to_end/.
#include "launcher/agent_signals.h"

#include <algorithm>
#include <csignal>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using Signals = std::vector<int>;

namespace {

SignalPlan plan_where_ignored(const LaunchOptions& options, const Signals& ignored) {
  return plan_signals(options, [&](int signal) {
    return std::find(ignored.begin(), ignored.end(), signal) != ignored.end();
  });
}

}  // namespace

TEST_CASE("signals end the job, go to the workers, pause them, or ask where it stands",
          "[launcher][signals]") {
  LaunchOptions options;
  options.signals_to_handle = {SIGTERM, SIGINT};
  options.signals_to_forward = {SIGUSR2};

  const SignalPlan plan = plan_where_ignored(options, {});

  CHECK(plan.to_end == Signals{SIGTERM, SIGINT});
  CHECK(plan.to_forward == Signals{SIGUSR2});
  CHECK(plan.to_tell == Signals{SIGUSR1});
  CHECK(plan.to_pause == Signals{SIGTSTP});
  CHECK_FALSE(plan.watch_session);
}

TEST_CASE("SIGUSR1 asks for the status only where it means nothing else", "[launcher][signals]") {
  LaunchOptions options;
  SECTION("it ends the job") {
    options.signals_to_handle = {SIGTERM, SIGUSR1};
    CHECK(plan_where_ignored(options, {}).to_tell.empty());
    CHECK(plan_where_ignored(options, {}).to_end == Signals{SIGTERM, SIGUSR1});
  }
  SECTION("it is the workers' business") {
    options.signals_to_forward = {SIGUSR1};
    CHECK(plan_where_ignored(options, {}).to_tell.empty());
    CHECK(plan_where_ignored(options, {}).to_forward == Signals{SIGUSR1});
  }
  SECTION("whoever started us wants it ignored") {
    CHECK(plan_where_ignored(options, {SIGUSR1}).to_tell.empty());
  }
}

TEST_CASE("SIGTSTP pauses the workers only where it means nothing else", "[launcher][signals]") {
  LaunchOptions options;
  CHECK(plan_where_ignored(options, {SIGTSTP}).to_pause.empty());
  options.signals_to_forward = {SIGTSTP};
  CHECK(plan_where_ignored(options, {}).to_pause.empty());
}

TEST_CASE("a job whose SIGHUP is handled ends with its session, unless it is to stay",
          "[launcher][signals]") {
  LaunchOptions options;
  options.signals_to_handle = {SIGTERM, SIGHUP};
  SECTION("as it is") {
    CHECK(plan_where_ignored(options, {}).watch_session);
    CHECK(plan_where_ignored(options, {}).to_end == Signals{SIGTERM, SIGHUP});
  }
  SECTION("--stay: a SIGHUP still ends it, the session does not") {
    options.stay = true;
    CHECK_FALSE(plan_where_ignored(options, {}).watch_session);
    CHECK(plan_where_ignored(options, {}).to_end == Signals{SIGTERM, SIGHUP});
  }
  SECTION("nohup: neither does") {
    CHECK_FALSE(plan_where_ignored(options, {SIGHUP}).watch_session);
    CHECK(plan_where_ignored(options, {SIGHUP}).to_end == Signals{SIGTERM});
  }
}
