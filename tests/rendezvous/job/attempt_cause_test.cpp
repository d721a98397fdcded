// Which failure ended an attempt. No test sleeps: time is an argument.
#include "rendezvous/job/attempt_cause.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const TimePoint first_moment = TimePoint() + 1h;

FirstCause failure(int rank, std::chrono::milliseconds age = 0ms,
                   FirstCause::Kind kind = FirstCause::Kind::WorkerFailed) {
  return {.kind = kind, .rank = rank, .exit_code = 10 + rank, .age_ms = age.count()};
}

AttemptCause ended_by(const FirstCause& cause, TimePoint now) {
  AttemptCause result;
  result.attempt_began(first_moment);
  result.ended_by(cause, now);
  return result;
}

}  // namespace

TEST_CASE("only a difference that no message's way explains changes the cause",
          "[rendezvous][attempt_cause]") {
  const auto becomes_first = [](std::chrono::milliseconds first_age,
                                std::chrono::milliseconds later,
                                std::chrono::milliseconds other_age) {
    AttemptCause cause = ended_by(failure(0, first_age), first_moment + 60s);
    return cause.heard_of(failure(1, other_age), first_moment + 60s + later);
  };
  CHECK_FALSE(becomes_first(0ms, 0ms, 0ms));
  CHECK_FALSE(becomes_first(0ms, 0ms, 1'000ms));  // As long as a way may take.
  CHECK(becomes_first(0ms, 0ms, 1'001ms));
  CHECK_FALSE(becomes_first(0ms, 5'000ms, 6'000ms));  // Older since it comes later.
  CHECK(becomes_first(0ms, 5'000ms, 6'001ms));
  CHECK_FALSE(becomes_first(3'000ms, 0ms, 4'000ms));
  CHECK(becomes_first(3'000ms, 0ms, 4'001ms));
}

TEST_CASE("who tells of a peer's end is not blamed where a peer names an error of its own",
          "[rendezvous][attempt_cause]") {
  FirstCause victim = failure(0);
  victim.of_a_peer = true;
  const TimePoint now = first_moment + 60s;

  AttemptCause cause = ended_by(victim, now);
  FirstCause other_victim = failure(2, 500ms);
  other_victim.of_a_peer = true;
  CHECK_FALSE(cause.heard_of(other_victim, now + 10ms));  // It knows no more.
  FirstCause queued_again = failure(3);
  queued_again.exit_code = exit_status::preempted;
  CHECK_FALSE(cause.heard_of(queued_again, now + 10ms));
  REQUIRE(cause.heard_of(failure(1), now + 300ms));  // Heard of later, by its clock later, too.
  CHECK(cause.get()->rank == 1);
  CHECK(cause.get()->exit_code == 10);
  CHECK(cause.get()->ended_first == describe(victim));
  CHECK_FALSE(cause.heard_of(failure(4, 500ms), now + 400ms));  // Two errors: the first heard.

  CHECK_FALSE(ended_by(failure(1), now).heard_of(victim, now + 10ms));
}

TEST_CASE("the earlier failure is the cause, the exit status stays that of who ended first",
          "[rendezvous][attempt_cause]") {
  AttemptCause cause = ended_by(failure(0), first_moment + 60s);
  const std::string first_in_words = describe(*cause.get());

  REQUIRE(cause.heard_of(failure(1, 5s), first_moment + 60s));
  CHECK(cause.get()->rank == 1);
  CHECK(cause.get()->exit_code == 10);
  CHECK(cause.get()->ended_first == first_in_words);

  REQUIRE(cause.heard_of(failure(2, 20s), first_moment + 60s));  // Earlier still.
  CHECK(cause.get()->rank == 2);
  CHECK(cause.get()->exit_code == 10);
  CHECK(cause.get()->ended_first == first_in_words);

  CHECK_FALSE(cause.heard_of(failure(3, 10s), first_moment + 60s));  // Between the two.
  CHECK(cause.get()->rank == 2);

  AttemptCause killed = ended_by({.rank = 0, .signal = 9}, first_moment + 60s);
  REQUIRE(killed.heard_of(failure(1, 5s), first_moment + 60s));
  CHECK(exit_status_of(*killed.get()) == 128 + 9);
}

TEST_CASE("what has no age is not compared", "[rendezvous][attempt_cause]") {
  for (const FirstCause::Kind kind :
       {FirstCause::Kind::StartFailed, FirstCause::Kind::NodeLost, FirstCause::Kind::Interrupted}) {
    CAPTURE(static_cast<int>(kind));
    AttemptCause other_is_first = ended_by(failure(0, 0s, kind), first_moment + 60s);
    CHECK_FALSE(other_is_first.heard_of(failure(1, 30s), first_moment + 60s));
    AttemptCause worker_is_first = ended_by(failure(0), first_moment + 60s);
    CHECK_FALSE(worker_is_first.heard_of(failure(1, 30s, kind), first_moment + 60s));
    CHECK(worker_is_first.get()->rank == 0);
    worker_is_first.ended_by(failure(2, 0s, kind), first_moment + 61s);  // Of more weight.
    CHECK_FALSE(worker_is_first.heard_of(failure(1, 30s), first_moment + 61s));
    CHECK(worker_is_first.get()->rank == 2);
  }
}

TEST_CASE("no failure is older than its attempt", "[rendezvous][attempt_cause]") {
  AttemptCause cause = ended_by(failure(0), first_moment + 900ms);
  CHECK_FALSE(cause.heard_of(failure(1, 1h), first_moment + 900ms));
  AttemptCause later = ended_by(failure(0), first_moment + 1'100ms);
  CHECK(later.heard_of(failure(1, 1h), first_moment + 1'100ms));
}

TEST_CASE("a new attempt has no cause, and nothing is compared before it has",
          "[rendezvous][attempt_cause]") {
  AttemptCause cause = ended_by(failure(0), first_moment + 60s);
  cause.attempt_began(first_moment + 70s);
  CHECK_FALSE(cause.get());
  CHECK_FALSE(cause.heard_of(failure(1, 5s), first_moment + 80s));
  CHECK_FALSE(cause.get());
}
