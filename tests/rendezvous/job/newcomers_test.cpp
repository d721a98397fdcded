// When newcomers stand by after others have gone, and for how long. No test sleeps: time is an
// argument.
#include "rendezvous/job/newcomers.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const TimePoint first_moment = TimePoint() + 1h;

Newcomers running_job() {
  Newcomers newcomers({.settled = 300s, .cost_least = 1s, .pause_max = 300s});
  newcomers.runs(first_moment);
  return newcomers;
}

// One goes, and the others stand for `outage`.
TimePoint lose(Newcomers& newcomers, TimePoint now, Milliseconds outage) {
  newcomers.went(now);
  newcomers.stands(now);
  newcomers.runs(now + outage);
  return now + outage;
}

}  // namespace

TEST_CASE("nobody waits while nobody has gone", "[rendezvous][newcomers]") {
  CHECK_FALSE(Newcomers({}).pause_ends(first_moment));
  CHECK_FALSE(running_job().pause_ends(first_moment + 1s));
}

TEST_CASE("a loss alone keeps nobody waiting, however long it lasted", "[rendezvous][newcomers]") {
  Newcomers newcomers = running_job();
  const TimePoint now = lose(newcomers, first_moment, 40s);
  CHECK_FALSE(newcomers.pause_ends(now));
}

TEST_CASE("a loss before the one before it is paid for keeps newcomers waiting until both are",
          "[rendezvous][newcomers]") {
  Newcomers newcomers = running_job();
  lose(newcomers, first_moment, 200ms);               // Costs a second, which ten pay for.
  lose(newcomers, first_moment + 200ms + 4s, 200ms);  // Six are owed, and ten more.
  const TimePoint now = first_moment + 200ms + 4s + 200ms;
  CHECK(newcomers.pause_ends(now) == now + 16s);
  CHECK(newcomers.pause_ends(now + 15s) == now + 16s);
  CHECK_FALSE(newcomers.pause_ends(now + 16s));
}

TEST_CASE("losses that cost less than a tenth of the time keep nobody waiting",
          "[rendezvous][newcomers]") {
  Newcomers newcomers = running_job();
  TimePoint now = first_moment;
  for (int i = 0; i < 100; ++i) {
    now = lose(newcomers, now + 15s, 300ms);
    CHECK_FALSE(newcomers.pause_ends(now));
  }
  // The same, each as long as it took to come.
  for (int i = 0; i < 5; ++i) now = lose(newcomers, now + 15s, 5s);
  CHECK(newcomers.pause_ends(now));
}

TEST_CASE("a loss costs twice the time that the others stand", "[rendezvous][newcomers]") {
  Newcomers newcomers = running_job();
  lose(newcomers, first_moment, 0s);
  const TimePoint now = lose(newcomers, first_moment, 3s);
  CHECK(newcomers.pause_ends(now) == now + 10s + 60s);
}

TEST_CASE("the time in which the job stands pays for nothing", "[rendezvous][newcomers]") {
  Newcomers newcomers = running_job();
  lose(newcomers, first_moment, 0s);
  lose(newcomers, first_moment, 0s);
  newcomers.stands(first_moment);  // For another reason than a newcomer.
  CHECK(newcomers.pause_ends(first_moment + 1h) == first_moment + 1h + 20s);
  newcomers.runs(first_moment + 1h);
  CHECK(newcomers.pause_ends(first_moment + 1h) == first_moment + 1h + 20s);
}

TEST_CASE("many that go at once keep newcomers waiting for five minutes at most",
          "[rendezvous][newcomers]") {
  Newcomers newcomers = running_job();
  for (int i = 0; i < 100; ++i) newcomers.went(first_moment);
  CHECK(newcomers.pause_ends(first_moment) == first_moment + 300s);
}

TEST_CASE("what was earned in a long time pays for no crowd", "[rendezvous][newcomers]") {
  Newcomers newcomers = running_job();
  const TimePoint late = first_moment + 1'000h;
  for (int i = 0; i < 31; ++i) newcomers.went(late);
  CHECK_FALSE(newcomers.pause_ends(late));  // 300 s of credit are thirty losses, and one is free.
  newcomers.went(late);
  CHECK(newcomers.pause_ends(late) == late + 20s);
}

TEST_CASE("a node belongs to the job once it has taken part for long", "[rendezvous][newcomers]") {
  const Newcomers newcomers({});
  CHECK_FALSE(newcomers.settled(std::nullopt, first_moment));
  CHECK_FALSE(newcomers.settled(first_moment, first_moment + 299s));
  CHECK(newcomers.settled(first_moment, first_moment + 300s));
}
