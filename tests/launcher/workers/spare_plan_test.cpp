// When spares are started, taken and given up.
#include "launcher/workers/spare_plan.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

using TimePoint = SparePlan::TimePoint;
constexpr TimePoint start{100s};
const SpareLimits spare_limits{.settle = 1s, .warm_up = 60s, .pause = 2s, .deaths_max = 3};

// A plan whose attempt has run for the time that its workers have for themselves.
SparePlan settled(int spares) {
  SparePlan plan(spares, spare_limits);
  plan.attempt_started(start - 1s);
  return plan;
}

void warm(SparePlan& plan, int local_rank, TimePoint now) {
  plan.started(local_rank, now);
  plan.ready(local_rank, now);
}

}  // namespace

TEST_CASE("no spare is started before an attempt runs, nor while its workers start",
          "[launcher][spares]") {
  SparePlan plan(2, spare_limits);
  CHECK_FALSE(plan.next(start));
  CHECK_FALSE(plan.due(start));

  plan.attempt_started(start);

  CHECK_FALSE(plan.next(start + 999ms));
  CHECK(plan.due(start) == start + 1s);
  CHECK(plan.next(start + 1s) == 0);
}

TEST_CASE("one spare warms up at a time, in the order of local ranks", "[launcher][spares]") {
  SparePlan plan = settled(3);
  REQUIRE(plan.next(start) == 0);
  plan.started(0, start);
  CHECK_FALSE(plan.next(start + 59s));
  CHECK(plan.due(start + 59s) == start + 60s);

  plan.ready(0, start + 59s);

  CHECK(plan.next(start + 59s) == 1);
  warm(plan, 1, start + 59s);
  CHECK(plan.next(start + 59s) == 2);
  warm(plan, 2, start + 59s);
  CHECK_FALSE(plan.next(start + 59s));
  CHECK_FALSE(plan.due(start + 59s));
  CHECK(plan.ready_count() == 3);
}

TEST_CASE("a spare that is never ready holds up the others for a limited time, and is not taken",
          "[launcher][spares]") {
  SparePlan plan = settled(2);
  plan.started(0, start);

  CHECK(plan.next(start + 60s) == 1);
  warm(plan, 1, start + 60s);
  CHECK_FALSE(plan.next(start + 61s));
  CHECK_FALSE(plan.take(0));
  CHECK(plan.take(1));
  // Late is not never.
  plan.ready(0, start + 90s);
  CHECK(plan.take(0));
}

TEST_CASE("a spare is taken once, and another one follows when the attempt runs",
          "[launcher][spares]") {
  SparePlan plan = settled(1);
  CHECK_FALSE(plan.take(0));
  warm(plan, 0, start);
  plan.attempt_ended();

  CHECK(plan.take(0));
  CHECK_FALSE(plan.take(0));
  CHECK_FALSE(plan.next(start + 1h));
  plan.attempt_started(start + 5s);
  CHECK(plan.next(start + 6s) == 0);

  // There are no spares for other local ranks.
  CHECK_FALSE(plan.take(1));
  CHECK_FALSE(plan.take(-1));
}

TEST_CASE("a spare that is ready survives an attempt that did not need it", "[launcher][spares]") {
  SparePlan plan = settled(1);
  warm(plan, 0, start);
  plan.attempt_ended();
  plan.attempt_started(start + 5s);

  CHECK_FALSE(plan.next(start + 10s));
  CHECK(plan.take(0));
}

TEST_CASE("spares that die are replaced after a pause, and given up after the third in a row",
          "[launcher][spares]") {
  for (const bool asked : {false, true}) {
    SparePlan plan = settled(2);
    auto die = [&](TimePoint now) {
      plan.started(0, now);
      if (asked) plan.ready(0, now);
      return plan.ended(0, false, now);
    };
    auto first = die(start);
    CHECK_FALSE(first.given_up);
    CHECK(first.tell);
    CHECK_FALSE(first.reason.empty());
    CHECK(plan.next(start) == 1);  // The pause is of that local rank alone.
    warm(plan, 1, start);
    CHECK_FALSE(plan.next(start + 1999ms));
    CHECK(plan.due(start) == start + 2s);
    REQUIRE(plan.next(start + 2s) == 0);

    auto second = die(start + 2s);
    CHECK_FALSE(second.given_up);
    CHECK_FALSE(second.tell);
    CHECK(plan.due(start + 2s) == start + 6s);

    auto third = die(start + 6s);
    CHECK(third.given_up);
    CHECK_FALSE(third.for_all);
    CHECK(third.tell);
    CHECK((third.reason.find("asked for a rank") == third.reason.npos) == asked);
    CHECK_FALSE(plan.next(start + 1h));
    CHECK_FALSE(plan.due(start + 1h));
    CHECK(plan.take(1));  // Others are not touched.
  }
}

TEST_CASE("a spare that has stood ready for long makes up for those that died before",
          "[launcher][spares]") {
  SparePlan plan = settled(1);
  TimePoint now = start;
  for (int death = 0; death < 10; ++death) {
    plan.started(0, now);
    plan.ready(0, now + 1s);
    now += 301s;
    CHECK_FALSE(plan.ended(0, false, now).given_up);
    now += 2s;
    REQUIRE(plan.next(now) == 0);
  }
}

TEST_CASE("a spare that was of use makes up for those that died before", "[launcher][spares]") {
  SparePlan plan = settled(1);
  TimePoint now = start;
  for (int death = 0; death < 2; ++death, now += 10s) {
    plan.started(0, now);
    plan.ended(0, false, now);
  }
  warm(plan, 0, now);
  REQUIRE(plan.take(0));

  plan.started(0, now + 1s);
  CHECK_FALSE(plan.ended(0, false, now + 1s).given_up);
}

TEST_CASE("a program that succeeds without a rank is not started again", "[launcher][spares]") {
  SparePlan plan = settled(3);
  warm(plan, 0, start);
  plan.started(1, start);

  const auto end = plan.ended(1, true, start);

  CHECK(end.given_up);
  CHECK(end.for_all);
  CHECK(end.tell);
  CHECK_FALSE(plan.next(start + 1h));
  CHECK(plan.take(0));  // It did ask, whatever the other one was.

  // One that had asked and then ended well, as by a signal it handles, is like any other death.
  SparePlan other = settled(1);
  warm(other, 0, start);
  CHECK_FALSE(other.ended(0, true, start).given_up);
}

TEST_CASE("16.3: a place without a worker gets a spare at once, asked for or not",
          "[launcher][spares]") {
  SparePlan plan(1, spare_limits, 3);
  plan.attempt_started(start, {2});
  CHECK(plan.due(start) == start);
  REQUIRE(plan.next(start) == 2);
  plan.started(2, start);
  CHECK_FALSE(plan.next(start + 2s));  // One at a time, also beside this one.
  CHECK_FALSE(plan.is_ready(2));
  plan.ready(2, start + 2s);
  CHECK(plan.is_ready(2));
  CHECK(plan.next(start + 2s) == 0);  // The one that was asked for waits as ever.
  warm(plan, 0, start + 2s);
  CHECK_FALSE(plan.due(start + 2s));

  // Taken, and missing no more: there is none for it any longer.
  CHECK(plan.take(2));
  plan.attempt_started(start + 3s);
  CHECK_FALSE(plan.next(start + 1h));
}

TEST_CASE("16.3: a missing worker's spare that dies is given up like any other",
          "[launcher][spares]") {
  SparePlan plan(0, spare_limits, 2);
  TimePoint now = start;
  plan.attempt_started(now, {0});
  for (int death = 0; death < 3; ++death, now += 10s) {
    CHECK_FALSE(plan.has_given_up(0));
    REQUIRE(plan.next(now) == 0);
    plan.started(0, now);
    plan.ended(0, false, now);
  }
  CHECK(plan.has_given_up(0));
  CHECK_FALSE(plan.has_given_up(1));
  plan.attempt_started(now, {0});
  CHECK_FALSE(plan.next(now));
  CHECK_FALSE(plan.due(now));
}

TEST_CASE("16.3: a spare that neither gets ready nor ends is killed and tried again, three times",
          "[launcher][spares]") {
  SparePlan plan(0, spare_limits, 2);
  TimePoint now = start;
  plan.attempt_started(now, {1});
  for (int death = 1; death <= 3; ++death) {
    REQUIRE(plan.next(now) == 1);
    plan.started(1, now);
    CHECK(plan.due(now) == now + 600s);
    CHECK_FALSE(plan.overdue(now + 599s));
    now += 600s;
    REQUIRE(plan.overdue(now) == 1);
    const SparePlan::End end = plan.ended(1, false, now);
    CHECK_FALSE(plan.overdue(now));
    CHECK(end.tell == (death != 2));
    CHECK(end.given_up == (death == 3));
    if (death < 3) now = plan.due(now).value();
  }
  CHECK(plan.has_given_up(1));  // Now its place is filled cold (local_places.h).
  CHECK_FALSE(plan.due(now));
}

TEST_CASE("16.3: what others took to be ready bounds the wait for the next one",
          "[launcher][spares]") {
  SparePlan plan = settled(2);
  CHECK(plan.ready_by(0) == 600s);
  plan.started(0, start);
  plan.ready(0, start + 2s);
  CHECK(plan.ready_by(1) == 60s);  // A cold cache takes its time.
  plan.started(1, start + 2s);
  CHECK(plan.overdue(start + 62s) == 1);
  plan.attempt_ended();
  CHECK(plan.due(start + 2s) == start + 62s);  // Also while no attempt runs.
  CHECK(plan.overdue(start + 62s) == 1);
  plan.ended(1, false, start + 62s);
  CHECK(plan.ready_by(1) == 120s);  // The place was too slow once.
  plan.attempt_started(start + 63s);
  plan.started(1, start + 70s);
  plan.ready(1, start + 80s);
  CHECK(plan.ready_by(0) == 100s);  // Ten times the slowest.
}

TEST_CASE("16.3: a program may be given all the time that it wants to get ready",
          "[launcher][spares]") {
  SparePlan plan(1, {.ready_by = {}});
  plan.attempt_started(start - 1s);
  plan.started(0, start);
  CHECK_FALSE(plan.due(start));
  CHECK_FALSE(plan.overdue(start + 1000h));
  plan.ready(0, start + 1000h);
  CHECK(plan.take(0));
}
