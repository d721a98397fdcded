// Whose end is told first, and when a group's processes are asked, killed and given up: as tables,
// with time as a number.
#include "launcher/workers/group_state.h"

#include <set>
#include <utility>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using enum GroupAction;

namespace {

using Actions = std::vector<GroupAction>;
using TimePoint = GroupState::TimePoint;

const WorkerGroupLimits limits{.kill_wait = 5s, .order_wait = 1s, .leftover_grace = 30s};
constexpr TimePoint t{};

GroupState running_group() {
  GroupState group(limits);
  group.started();
  return group;
}

// Pairs {a, b}: a began to end before b, and has ended or is about to.
EndedEarlier order(const std::set<std::pair<int, int>>& pairs) {
  return [pairs](int other, int ended) { return pairs.count({other, ended}) != 0; };
}

GroupMember living() { return {}; }
GroupMember dead(std::chrono::milliseconds at) {
  return {.known = true, .failed = true, .ended_at = t + at};
}

Actions acts(const GroupStep& step) {
  CHECK_FALSE(step.reason.empty());
  return step.actions;
}

}  // namespace

TEST_CASE("a stop asks, then kills, then gives up", "[group_state]") {
  GroupState group = running_group();

  CHECK(acts(group.stop(SIGTERM, 30s, t)) == Actions{Ask});
  CHECK(group.deadline() == t + 30s);
  CHECK(acts(group.deadline_passed(t + 29s)).empty());
  CHECK(acts(group.deadline_passed(t + 30s)) == Actions{Kill});
  CHECK(group.deadline() == t + 35s);
  CHECK(acts(group.deadline_passed(t + 35s)) == Actions{GiveUp});
  CHECK_FALSE(group.active());
}

TEST_CASE("what the kernel takes apart is not given up as what hangs", "[group_state]") {
  GroupState group(limits);
  group.started();
  group.stop(SIGTERM, 30s, t);
  REQUIRE(acts(group.deadline_passed(t + 30s, 0, false)) == Actions{Kill});
  CHECK(acts(group.deadline_passed(t + 35s, 0, true)) == Actions{SayWait});
  CHECK(group.deadline() == t + 40s);
  for (auto now = t + 40s; now < t + 75s; now += 5s) {
    CHECK(acts(group.deadline_passed(now, 0, true)) == Actions{SayWait});
  }
  SECTION("for ever") {
    CHECK(group.deadline() == t + 75s);
    CHECK(acts(group.deadline_passed(t + 75s, 0, true)) == Actions{GiveUp});
  }
  SECTION("until it is gone") {
    CHECK(acts(group.looked(GroupEnds::SomeFailed, false, t + 72s)) == Actions{Finish});
  }
  SECTION("until only what hangs is left") {
    CHECK(acts(group.deadline_passed(t + 75s, 0, false)) == Actions{GiveUp});
  }
}

TEST_CASE("only another signal is sent to who was asked before", "[group_state]") {
  GroupState group = running_group();

  CHECK(acts(group.stop(SIGTERM, 30s, t)) == Actions{Ask});
  CHECK(acts(group.stop(SIGTERM, 30s, t)) == Actions{Ask});
  CHECK(acts(group.stop(SIGINT, 30s, t)) == Actions{AskAnew, Ask});
  CHECK(group.signal() == SIGINT);
}

TEST_CASE("a later stop may be in more of a hurry, never in less", "[group_state]") {
  GroupState group = running_group();
  group.stop(SIGTERM, 30s, t);

  group.stop(SIGTERM, 60s, t + 1s);
  CHECK(group.deadline() == t + 30s);
  group.stop(SIGTERM, 5s, t + 2s);
  CHECK(group.deadline() == t + 7s);
  CHECK(acts(group.stop(SIGKILL, 0s, t + 3s)).empty());  // Nobody is asked; the deadline is now.
  CHECK(acts(group.deadline_passed(t + 3s)) == Actions{Kill});
  CHECK(acts(group.stop(SIGTERM, 30s, t + 4s)).empty());
  CHECK(group.deadline() == t + 8s);
}

TEST_CASE("14.6: what is left after a success has less time than after a failure",
          "[group_state]") {
  const WorkerGroupLimits defaults;
  GroupState succeeded, failed, stopped;
  for (GroupState* group : {&succeeded, &failed, &stopped}) group->started();
  succeeded.looked(GroupEnds::AllSucceeded, true, t);
  failed.looked(GroupEnds::SomeFailed, true, t);
  stopped.stop(SIGTERM, 100s, t);
  stopped.looked(GroupEnds::AllSucceeded, true, t);

  CHECK(defaults.leftover_grace < defaults.failed_grace);
  CHECK(succeeded.deadline() == t + defaults.leftover_grace);
  CHECK(failed.deadline() == t + defaults.failed_grace);
  CHECK(stopped.deadline() == t + 100s);  // As was promised.
}

TEST_CASE("a look ends the group when nothing is left, and asks or kills what is new",
          "[group_state]") {
  GroupState group = running_group();
  CHECK(acts(group.looked(GroupEnds::NotAll, true, t)).empty());
  CHECK_FALSE(group.deadline());

  CHECK(acts(group.looked(GroupEnds::AllSucceeded, true, t + 1s)) == Actions{Ask});
  CHECK(group.deadline() == t + 31s);
  CHECK(acts(group.looked(GroupEnds::AllSucceeded, true, t + 9s)) == Actions{Ask});
  CHECK(group.deadline() == t + 31s);  // Once: leftovers cannot prolong it.

  SECTION("they end") {
    CHECK(acts(group.looked(GroupEnds::AllSucceeded, false, t + 10s)) == Actions{Finish});
    CHECK_FALSE(group.active());
    CHECK(acts(group.looked(GroupEnds::AllSucceeded, false, t + 10s)).empty());
  }
  SECTION("they do not") {
    group.deadline_passed(t + 31s);
    CHECK(acts(group.looked(GroupEnds::AllSucceeded, true, t + 32s)) == Actions{Kill});
    CHECK(group.deadline() == t + 36s);
  }
}

TEST_CASE("16.3: only who can park, and was not asked before, is spared", "[group_state]") {
  const GroupMember parker{.can_park = true}, parked{.can_park = true, .parked = true};
  for (const Keep keep : {Keep::Nobody, Keep::Held, Keep::Parking}) {
    GroupState group = running_group();
    CHECK_FALSE(group.spares(parker));  // Nothing is asked of anybody yet.
    const auto actions = acts(group.stop(SIGTERM, 30s, t, keep));
    CHECK(actions == (keep == Keep::Parking ? Actions{TellOver, Ask} : Actions{Ask}));
    const bool keeps = keep != Keep::Nobody;
    CHECK(group.spares(parker) == keeps);
    CHECK(group.spares(parked) == keeps);
    CHECK_FALSE(group.spares(living()));
    CHECK_FALSE(group.spares({.asked = true, .can_park = true, .parked = true}));
    CHECK_FALSE(group.spares({.known = true, .can_park = true, .parked = true}));
    CHECK_FALSE(group.spares({.told = true, .can_park = true, .parked = true}));
  }
}

TEST_CASE("16.3: who has not parked in time is asked, and then killed; who has, stays",
          "[group_state]") {
  const GroupMember parker{.can_park = true}, parked{.can_park = true, .parked = true};
  GroupState group = running_group();
  group.stop(SIGTERM, 30s, t, Keep::Held);
  CHECK(acts(group.stop(SIGTERM, 30s, t + 1s, Keep::Parking)) == Actions{TellOver, Ask});
  CHECK(group.deadline() == t + 30s);  // As was promised to those who were asked.

  CHECK(acts(group.deadline_passed(t + 30s, 1)) == Actions{KillAsked, Ask});
  CHECK_FALSE(group.spares(parker));
  CHECK(group.spares(parked));
  CHECK(group.deadline() == t + 60s);
  CHECK(acts(group.deadline_passed(t + 60s, 1)) == Actions{Kill});  // Asked once more is enough.
  CHECK(group.spares(parked));
  CHECK(acts(group.deadline_passed(t + 65s, 1)) == Actions{GiveUp});
}

TEST_CASE("16.3: with all parked in time the others' grace is what it was", "[group_state]") {
  GroupState group = running_group();
  group.stop(SIGTERM, 30s, t, Keep::Parking);

  CHECK(acts(group.deadline_passed(t + 30s, 0)) == Actions{Kill});
  CHECK(group.spares({.can_park = true, .parked = true}));
}

TEST_CASE("16.3: without a grace who has not parked is killed at once", "[group_state]") {
  GroupState group = running_group();

  CHECK(acts(group.stop(SIGTERM, 0s, t, Keep::Parking)) == Actions{TellOver});
  CHECK(acts(group.deadline_passed(t, 2)) == Actions{Kill});
  CHECK_FALSE(group.spares({.can_park = true}));
}

TEST_CASE("16.3: a stop for all ends those that were spared, with all of its grace",
          "[group_state]") {
  const GroupMember parked{.can_park = true, .parked = true};
  GroupState group = running_group();
  group.stop(SIGTERM, 30s, t, Keep::Parking);
  SECTION("before the deadline") {
    CHECK(acts(group.stop(SIGTERM, 30s, t + 20s)) == Actions{Ask});
    CHECK(group.deadline() == t + 50s);
  }
  SECTION("after it") {
    group.deadline_passed(t + 30s, 0);
    REQUIRE(group.killing());
    CHECK(acts(group.stop(SIGTERM, 30s, t + 31s, Keep::Parking)).empty());
    CHECK(acts(group.stop(SIGTERM, 30s, t + 31s)) == Actions{Ask});
    CHECK(group.deadline() == t + 61s);
  }
  CHECK_FALSE(group.spares(parked));
  // And nobody is spared again.
  CHECK(acts(group.stop(SIGTERM, 30s, t + 40s, Keep::Parking)) == Actions{Ask});
  CHECK_FALSE(group.spares(parked));
}

TEST_CASE("16.3: one that cannot park any more is asked, if the others were", "[group_state]") {
  GroupState group = running_group();
  CHECK(acts(group.parker_lost()).empty());
  group.stop(SIGTERM, 30s, t, Keep::Held);
  CHECK(acts(group.parker_lost()) == Actions{Ask});
  group.stop(SIGTERM, 30s, t);
  CHECK(acts(group.parker_lost()).empty());
}

TEST_CASE("16.3: a group ends when all have ended or are parked", "[group_state]") {
  const GroupMember parked{.can_park = true, .parked = true};
  const GroupMember told{.told = true, .known = true, .failed = true};
  CHECK(ends_of({told, parked}) == GroupEnds::SomeFailed);
  CHECK(ends_of({parked, parked}) == GroupEnds::SomeFailed);
  CHECK(ends_of({told, {.can_park = true}}) == GroupEnds::NotAll);
}

TEST_CASE("what a worker leaves behind is asked when it ends, until SIGKILL is out",
          "[group_state]") {
  GroupState group = running_group();
  CHECK(acts(group.leader_ended(false)).empty());
  CHECK(acts(group.leader_ended(true)) == Actions{AskIts});
  group.stop(SIGTERM, 30s, t);
  CHECK(acts(group.leader_ended(true)) == Actions{AskIts});
  group.deadline_passed(t + 30s);
  CHECK(acts(group.leader_ended(true)).empty());
  group.looked(GroupEnds::SomeFailed, false, t + 31s);
  CHECK(acts(group.leader_ended(true)).empty());
}

TEST_CASE("how a group has ended is told by all of its workers", "[group_state]") {
  using enum GroupEnds;
  const GroupMember succeeded{.told = true, .known = true};
  const GroupMember failed{.told = true, .known = true, .failed = true};
  const GroupMember hangs{.told = true};  // Told of, though SIGKILL did not end it.
  const GroupMember untold{.known = true};
  CHECK(ends_of({}) == AllSucceeded);
  CHECK(ends_of({succeeded, succeeded}) == AllSucceeded);
  CHECK(ends_of({succeeded, failed}) == SomeFailed);
  CHECK(ends_of({succeeded, hangs}) == SomeFailed);
  CHECK(ends_of({succeeded, living()}) == NotAll);
  CHECK(ends_of({failed, untold}) == NotAll);
  // Told of before the kernel was done with it: what it holds is not free yet.
  const GroupMember ending{.told = true, .known = true, .failed = true, .ending = true};
  CHECK(ends_of({failed, ending}) == NotAll);
  GroupMember freed = ending;
  freed.only_memory = true;
  CHECK(ends_of({failed, freed}) == BeingFreed);
  CHECK(ends_of({freed, ending}) == NotAll);
  CHECK(ends_of({freed, living()}) == NotAll);
  CHECK(ends_of({freed, {.can_park = true, .parked = true}}) == BeingFreed);
}

TEST_CASE("16.3: memory that is being freed is waited for, unless another attempt follows",
          "[group_state]") {
  GroupState group = running_group();
  CHECK(acts(group.looked(GroupEnds::BeingFreed, false, t)).empty());
  group.stop(SIGTERM, 30s, t, Keep::Held);
  CHECK(acts(group.looked(GroupEnds::BeingFreed, false, t)).empty());
  CHECK(group.active());

  SECTION("none follows") {
    group.stop(SIGTERM, 30s, t);
    CHECK(acts(group.looked(GroupEnds::BeingFreed, false, t)).empty());
    CHECK(acts(group.looked(GroupEnds::SomeFailed, false, t)) == Actions{Finish});
  }
  SECTION("another follows") {
    group.stop(SIGTERM, 30s, t, Keep::Parking);
    // What a worker has left behind ends first.
    CHECK(acts(group.looked(GroupEnds::BeingFreed, true, t)).empty());
    CHECK(acts(group.looked(GroupEnds::BeingFreed, false, t)) == Actions{Finish});
    CHECK_FALSE(group.active());
  }
}

TEST_CASE("a new attempt knows nothing of the one before", "[group_state]") {
  GroupState group = running_group();
  group.stop(SIGINT, 0s, t);
  group.deadline_passed(t);
  group.looked(GroupEnds::AllSucceeded, false, t);

  group.started();

  CHECK(group.active());
  CHECK_FALSE(group.killing());
  CHECK(group.signal() == SIGTERM);
  CHECK_FALSE(group.deadline());
}

TEST_CASE("who began to end first is told first, in whichever order they got through",
          "[group_state]") {
  GroupState group = running_group();
  std::vector<GroupMember> members = {dead(10ms), dead(5ms), living()};

  TellStep step = group.next_to_tell(members, order({{0, 1}}), t);
  CHECK(step.member == 0);
  CHECK(step.kept_back);
  members[0].told = true;
  step = group.next_to_tell(members, order({{0, 1}}), t);
  CHECK(step.member == 1);
  CHECK_FALSE(step.kept_back);
  members[1].told = true;
  CHECK_FALSE(group.next_to_tell(members, order({{0, 1}}), t).member);
  CHECK_FALSE(group.tell_deadline());
}

TEST_CASE("without a known order, who was seen to end first is told first", "[group_state]") {
  GroupState group = running_group();

  CHECK(group.next_to_tell({dead(10ms), dead(5ms)}, order({}), t).member == 1);
}

TEST_CASE("one that is still on its way is waited for, but not for ever", "[group_state]") {
  GroupState group = running_group();
  const std::vector<GroupMember> members = {living(), dead(5ms)};
  const EndedEarlier earlier = order({{0, 1}});

  CHECK_FALSE(group.next_to_tell(members, earlier, t).member);
  CHECK(group.tell_deadline() == t + 1s);
  CHECK_FALSE(group.next_to_tell(members, earlier, t + 999ms).member);
  CHECK(group.tell_deadline() == t + 1s);
  CHECK(group.next_to_tell(members, earlier, t + 1s).member == 1);
}

TEST_CASE("past the limit one that has got through still comes first", "[group_state]") {
  GroupState group = running_group();
  const EndedEarlier earlier = order({{0, 1}, {2, 1}});
  group.next_to_tell({living(), dead(5ms), living()}, earlier, t);

  CHECK(group.next_to_tell({living(), dead(5ms), dead(2s)}, earlier, t + 2s).member == 2);
}

TEST_CASE("whose death the launcher's own signal may explain is told later", "[group_state]") {
  WorkerGroupLimits shared = limits;
  shared.shared_signals = {SIGTERM};
  GroupState group(shared);
  group.started();
  GroupMember ended = dead(10ms), earlier = dead(5ms), victim = dead(20ms), success = dead(20ms);
  ended.signal = SIGTERM;
  earlier.signal = victim.signal = SIGKILL;
  success.failed = false;

  SECTION("it is blamed when no signal has come") {
    CHECK_FALSE(group.next_to_tell({ended, victim}, order({}), t + 20ms).member);
    CHECK(group.tell_deadline() == t + 110ms);
    CHECK_FALSE(group.next_to_tell({ended, victim}, order({}), t + 109ms).member);
    CHECK(group.next_to_tell({ended, victim}, order({}), t + 110ms).member == 0);
    CHECK_FALSE(group.tell_deadline());
  }
  SECTION("it is told at once when the attempt is stopped") {
    group.stop(SIGTERM, 30s, t + 30ms);
    CHECK(group.next_to_tell({ended}, order({}), t + 30ms).member == 0);
  }
  SECTION("others are not kept back for it") {
    CHECK(group.next_to_tell({ended, earlier}, order({}), t + 20ms).member == 1);
    CHECK(group.next_to_tell({ended, success}, order({}), t + 20ms).member == 1);
  }
}

TEST_CASE("successes and victims wait for nobody", "[group_state]") {
  GroupState group = running_group();
  GroupMember success = dead(5ms);
  success.failed = false;
  GroupMember victim = dead(5ms);
  victim.stop_sent = true;

  CHECK(group.next_to_tell({living(), success}, order({{0, 1}}), t).member == 1);
  CHECK(group.next_to_tell({living(), victim}, order({{0, 1}}), t).member == 1);
}

TEST_CASE("every end is told once, whatever the order of three deaths", "[group_state]") {
  // All orders in which they began to end, and all in which they were seen.
  for (int began = 0; began < 6; ++began) {
    for (int seen = 0; seen < 6; ++seen) {
      const auto permutation = [](int number) {
        std::vector<int> left = {0, 1, 2}, result;
        for (const int base : {2, 1, 1}) {
          const auto at = left.begin() + number / base % static_cast<int>(left.size());
          result.push_back(*at);
          left.erase(at);
          number %= base;
        }
        return result;
      };
      const std::vector<int> by_begin = permutation(began), by_sight = permutation(seen);
      std::vector<GroupMember> members(3);
      for (int i = 0; i < 3; ++i) {
        members[static_cast<std::size_t>(by_sight[static_cast<std::size_t>(i)])] =
            dead(std::chrono::milliseconds(i));
      }
      const EndedEarlier earlier = order(
          {{by_begin[0], by_begin[1]}, {by_begin[0], by_begin[2]}, {by_begin[1], by_begin[2]}});
      GroupState group = running_group();
      std::vector<int> told;
      while (const auto next = group.next_to_tell(members, earlier, t).member) {
        told.push_back(*next);
        members[static_cast<std::size_t>(*next)].told = true;
        REQUIRE(told.size() <= 3);
      }
      CHECK(told == by_begin);
    }
  }
}
