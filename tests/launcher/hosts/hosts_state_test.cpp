// A job on several hosts from its start to its end, with what goes wrong between. Time is a number.
#include "launcher/hosts/hosts_state.h"

#include <csignal>
#include <string>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using std::chrono::milliseconds;
using Phase = HostsState::Phase;
using Verdict = HostsState::Verdict;

namespace {

HostsState::TimePoint at(int ms) { return HostsState::TimePoint{} + milliseconds(ms); }

// "start 0, start 1"
std::string acts(const HostsStep& step) {
  std::string text;
  CHECK_FALSE(step.reason.empty());
  for (const HostsAct& act : step.acts) {
    using What = HostsAct::What;
    const char* const what = act.what == What::Start    ? "start "
                             : act.what == What::Tell   ? "tell "
                             : act.what == What::Signal ? "signal "
                             : act.what == What::Kill   ? "kill "
                                                        : "finish";
    text += (text.empty() ? "" : ", ") + std::string(what);
    if (act.node >= 0) text += std::to_string(act.node);
    if (act.signal > 0) text += "=" + std::to_string(act.signal);
  }
  return text;
}

HostsLimits limits() {
  return {.at_once = 8,
          .hello = milliseconds(1'000),
          .opening = milliseconds(2'000),
          .ending = milliseconds(5'000),
          .killing = milliseconds(500)};
}

HostsState running(int nodes, HostsLimits all = limits()) {
  HostsState state(all, nodes);
  state.begin(at(0));
  for (int i = 0; i < nodes; ++i) state.hello(i, at(1));
  state.opened();
  return state;
}

std::string late(const HostsState& state) {
  std::string text;
  for (const HostsState::Late& one : state.late()) {
    text += (text.empty() ? "" : ", ") + std::to_string(one.node) +
            (one.phase == Phase::Starting  ? " starting"
             : one.phase == Phase::Opening ? " opening"
                                           : " ending");
  }
  return text;
}

HostsState begun(int nodes, HostsLimits all = limits()) {
  HostsState state = running(nodes, all);
  CHECK(acts(state.begun()).empty());
  return state;
}

}  // namespace

TEST_CASE("17.3: node 0 listens before the others are told where", "[hosts]") {
  HostsState state(limits(), 3);
  CHECK(acts(state.begin(at(0))) == "start 0, start 1, start 2");
  CHECK(acts(state.hello(2, at(1))).empty());
  CHECK(acts(state.hello(0, at(2))).empty());
  CHECK_FALSE(state.turned_away(2, at(2)));  // Its login is over.
  CHECK(acts(state.hello(1, at(3))) == "tell 0");
  CHECK(acts(state.hello(0, at(4))).empty());  // Once is enough.
  CHECK_FALSE(state.turned_away(1, at(4)));
  CHECK(acts(state.opened()) == "tell 1, tell 2");
  CHECK(acts(state.opened()).empty());
  CHECK_FALSE(state.has_begun());
  state.begun();
  CHECK(state.has_begun());
  CHECK(acts(state.deadline_passed(at(9'000))).empty());  // The endpoint's is over.
  CHECK(acts(state.ended(1, Verdict::Success, at(5))).empty());
  CHECK_FALSE(state.deadline());
  CHECK(acts(state.ended(0, Verdict::Success, at(6))).empty());
  CHECK(acts(state.ended(2, Verdict::Success, at(7))) == "finish");
  CHECK(state.phase() == HostsState::Phase::Done);
}

TEST_CASE("17.3: at most so many nodes are started at once", "[hosts]") {
  HostsLimits few = limits();
  few.at_once = 2;
  HostsState state(few, 4);
  CHECK(acts(state.begin(at(0))) == "start 0, start 1");
  CHECK(acts(state.hello(1, at(1))) == "start 2");
  CHECK(acts(state.hello(2, at(1))) == "start 3");
  state.hello(3, at(1));
  CHECK(acts(state.hello(0, at(2))) == "tell 0");
}

// OpenSSH drops connections beyond ten that have not logged in (MaxStartups), and a jump host has
// those to all hosts.
TEST_CASE("17.3: a host that an sshd turns away is started again, with fewer at a time",
          "[hosts]") {
  HostsLimits all = limits();
  all.at_once_where_short = 2;
  all.tries = 3;
  HostsState state(all, 4);
  CHECK(acts(state.begin(at(0))) == "start 0, start 1, start 2, start 3");
  REQUIRE(state.turned_away(2, at(10)));
  REQUIRE(state.turned_away(3, at(10)));
  CHECK(state.deadline() == at(1'000));  // Two log in, which is as many as may now.
  CHECK(acts(state.hello(3, at(10))).empty());
  CHECK(acts(state.hello(0, at(20))).empty());
  REQUIRE(state.deadline());
  const auto again = *state.deadline();
  CHECK(again > at(500));
  CHECK(again < at(1'010));
  CHECK(acts(state.deadline_passed(again)) == "start 2");
  CHECK(acts(state.hello(1, at(1'011))) == "start 3");
  CHECK(acts(state.hello(3, at(1'100))).empty());
  // One that is turned away for good is a host that cannot be reached.
  REQUIRE(state.turned_away(2, at(1'200)));
  CHECK(acts(state.deadline_passed(*state.deadline())) == "start 2");
  CHECK_FALSE(state.turned_away(2, at(3'000)));
  CHECK(acts(state.ended(2, Verdict::None, at(3'000))) == "kill 0, kill 1, kill 3");
  CHECK(state.preventer() == 2);
}

TEST_CASE("17.3: a host that cannot be reached ends the others", "[hosts]") {
  HostsLimits few = limits();
  few.at_once = 2;
  HostsState state(few, 4);
  state.begin(at(0));
  state.hello(0, at(1));  // 1 and 2 are being started, 3 waits.
  CHECK(acts(state.ended(1, Verdict::None, at(2))) == "kill 0, kill 2");
  CHECK(acts(state.hello(2, at(3))).empty());
  CHECK(acts(state.ended(0, Verdict::None, at(4))).empty());
  CHECK(acts(state.ended(2, Verdict::None, at(5))) == "finish");
}

TEST_CASE("17.3: node 0 that ends before it listens ends the others", "[hosts]") {
  HostsState state(limits(), 2);
  state.begin(at(0));
  state.hello(0, at(1));
  state.hello(1, at(1));
  CHECK(acts(state.ended(0, Verdict::Success, at(2))) == "kill 1");
  CHECK(state.preventer() == 0);
  CHECK(acts(state.ended(1, Verdict::None, at(3))) == "finish");
}

TEST_CASE("17.3: a host that says nothing is given up after its own limit", "[hosts]") {
  HostsLimits one = limits();
  one.at_once = 1;
  HostsState state(one, 2);
  state.begin(at(0));
  CHECK(state.deadline() == at(1'000));
  state.hello(0, at(900));  // Only now is the second one started.
  CHECK(state.deadline() == at(1'900));
  CHECK(acts(state.deadline_passed(at(1'000))).empty());
  CHECK(acts(state.deadline_passed(at(1'900))) == "kill 0, kill 1");
  CHECK(late(state) == "1 starting");
  // Its ssh hangs, too.
  CHECK(state.deadline() == at(2'400));
  state.ended(0, Verdict::None, at(2'000));
  CHECK(acts(state.deadline_passed(at(2'400))) == "kill 1");
}

TEST_CASE("17.3: an endpoint that never opens ends the job", "[hosts]") {
  HostsState state(limits(), 2);
  state.begin(at(0));
  state.hello(0, at(1));
  state.hello(1, at(1));
  CHECK(state.deadline() == at(2'001));
  CHECK(acts(state.deadline_passed(at(2'000))).empty());
  CHECK(acts(state.deadline_passed(at(2'001))) == "kill 0, kill 1");
  CHECK(state.deadline() == at(2'501));
  CHECK(late(state) == "0 opening");
}

TEST_CASE("17.3: a job that is refused ends all hosts in order", "[hosts]") {
  HostsState state = running(2);
  const HostsStep step = state.refuse("two of them are one machine", at(10));
  CHECK(acts(step) == "signal 0=15, signal 1=15");
  CHECK(step.reason == "two of them are one machine");
  CHECK(state.deadline() == at(5'010));
}

TEST_CASE("17.3: the first Ctrl-C asks, the second reaches everyone too, the third cuts off",
          "[hosts]") {
  HostsState state = running(2);
  const int signal = GENERATE(SIGINT, SIGQUIT);
  const std::string passed_on =
      "signal 0=" + std::to_string(signal) + ", signal 1=" + std::to_string(signal);
  CHECK(acts(state.signal(signal, at(10))) == passed_on);
  CHECK(state.deadline() == at(5'010));
  CHECK(acts(state.signal(signal, at(20))) == passed_on);
  CHECK(state.deadline() == at(520));
  CHECK(acts(state.signal(signal, at(30))) == "kill 0, kill 1");
  state.ended(0, Verdict::Success, at(40));
  CHECK(acts(state.ended(1, Verdict::None, at(41))) == "finish");
}

TEST_CASE("17.3: Ctrl-C while hosts are reached ends their connections", "[hosts]") {
  HostsState state(limits(), 2);
  state.begin(at(0));
  state.hello(0, at(1));
  CHECK(acts(state.signal(SIGINT, at(2))) == "kill 0, kill 1");
  CHECK_FALSE(state.turned_away(1, at(2)));  // It is not started again.
  state.ended(1, Verdict::None, at(3));
  CHECK(acts(state.ended(0, Verdict::None, at(4))) == "finish");
}

TEST_CASE("17.3: who does not end after a signal is cut off", "[hosts]") {
  HostsState state = running(2);
  state.signal(SIGTERM, at(10));
  for (int again = 0; again < 3; ++again) {  // Schedulers repeat it, and nobody is in a hurry.
    CHECK(acts(state.signal(SIGTERM, at(10))) == "signal 0=15, signal 1=15");
  }
  state.ended(0, Verdict::Success, at(20));
  CHECK(acts(state.deadline_passed(at(5'010))) == "kill 1");
  CHECK(late(state) == "1 ending");
}

TEST_CASE("17.3: a lost host bounds the others' end, unless they may go on", "[hosts]") {
  HostsState fixed = begun(3);
  CHECK(acts(fixed.ended(1, Verdict::None, at(10))).empty());
  CHECK(fixed.deadline() == at(5'010));
  CHECK_FALSE(fixed.preventer());

  HostsLimits may_shrink = limits();
  may_shrink.elastic = true;
  HostsState elastic = begun(3, may_shrink);
  elastic.ended(1, Verdict::None, at(10));
  CHECK_FALSE(elastic.deadline());

  HostsLimits may_be_lost = limits();
  may_be_lost.stay = true;
  HostsState stays = begun(3, may_be_lost);
  stays.ended(1, Verdict::None, at(10));
  CHECK_FALSE(stays.deadline());
  stays.ended(0, Verdict::Success, at(20));
  CHECK_FALSE(stays.deadline());
  CHECK(acts(stays.ended(2, Verdict::Success, at(30))) == "finish");
}

TEST_CASE("17.3: a failure that one host tells bounds the others' end, a success does not",
          "[hosts]") {
  HostsState failed = begun(3);
  CHECK(acts(failed.ended(1, Verdict::Failure, at(10))).empty());
  CHECK(failed.deadline() == at(5'010));
  failed.ended(0, Verdict::Failure, at(20));
  CHECK(failed.deadline() == at(5'010));
  CHECK(acts(failed.deadline_passed(at(5'010))) == "kill 2");
  CHECK(late(failed) == "2 ending");
  CHECK(acts(failed.ended(2, Verdict::None, at(5'020))) == "finish");

  HostsState succeeded = begun(3);
  succeeded.ended(1, Verdict::Success, at(10));
  CHECK_FALSE(succeeded.deadline());

  HostsLimits may_shrink = limits();
  may_shrink.elastic = true;
  HostsState elastic = begun(3, may_shrink);
  elastic.ended(1, Verdict::Failure, at(10));
  CHECK_FALSE(elastic.deadline());
}

TEST_CASE("17.3: who stands still for a slow reader of the output is not late", "[hosts]") {
  HostsState state = begun(2);
  CHECK(acts(state.output_waited(at(5))).empty());
  CHECK_FALSE(state.deadline());
  state.ended(1, Verdict::Failure, at(10));
  state.output_waited(at(5'000));
  CHECK(state.deadline() == at(10'000));
  CHECK(acts(state.deadline_passed(at(5'010))).empty());
  CHECK(acts(state.deadline_passed(at(10'000))) == "kill 0");

  HostsState too_early = running(3);  // Nobody has workers whose output is waited for.
  too_early.ended(1, Verdict::None, at(10));
  too_early.output_waited(at(500));
  CHECK(too_early.deadline() == at(510));

  HostsState interrupted = begun(2);
  interrupted.signal(SIGTERM, at(10));
  interrupted.output_waited(at(5'000));
  CHECK(interrupted.deadline() == at(5'010));
}

TEST_CASE("17.3: a host that ends before the first round ends the others at once", "[hosts]") {
  for (const Verdict verdict : {Verdict::None, Verdict::Success, Verdict::Failure}) {
    INFO(static_cast<int>(verdict));
    HostsState state = running(3);
    CHECK(acts(state.ended(1, verdict, at(10))) == "signal 0=15, signal 2=15");
    CHECK(state.preventer() == 1);
    CHECK(state.deadline() == at(510));
    state.ended(2, Verdict::None, at(20));
    CHECK(acts(state.ended(0, Verdict::Success, at(30))) == "finish");
    CHECK(state.preventer() == 1);
  }
}

TEST_CASE("17.3: an elastic job begins while as many hosts are left as it takes", "[hosts]") {
  HostsLimits two = limits();
  two.elastic = true;
  two.least = 2;
  HostsState state = running(3, two);
  CHECK(acts(state.ended(1, Verdict::None, at(10))).empty());
  CHECK_FALSE(state.preventer());
  CHECK_FALSE(state.deadline());
  CHECK(acts(state.ended(0, Verdict::None, at(20))) == "signal 2=15");
  CHECK(state.preventer() == 0);
}
