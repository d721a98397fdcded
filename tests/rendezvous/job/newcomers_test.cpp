// How long newcomers stand by after others have gone. No test sleeps: time is an argument.
#include "rendezvous/job/newcomers.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const TimePoint start = TimePoint() + 1h;

}  // namespace

TEST_CASE("nobody waits while nobody has gone", "[rendezvous][newcomers]") {
  const Newcomers newcomers({});
  CHECK_FALSE(newcomers.pause_ends(start));
}

TEST_CASE("the pause doubles with each that went in a row, up to its limit",
          "[rendezvous][newcomers]") {
  Newcomers newcomers({.settled = 300s, .pause_first = 5s, .pause_max = 60s});
  TimePoint now = start;
  for (const auto pause : {5s, 10s, 20s, 40s, 60s, 60s}) {
    newcomers.went(now);
    CHECK(newcomers.pause_ends(now) == now + pause);
    CHECK_FALSE(newcomers.pause_ends(now + pause));
    now += pause;
  }
}

TEST_CASE("a long time without a loss ends the row", "[rendezvous][newcomers]") {
  Newcomers newcomers({.settled = 300s, .pause_first = 5s, .pause_max = 60s});
  newcomers.went(start);
  newcomers.went(start);
  newcomers.went(start + 1h);
  CHECK(newcomers.pause_ends(start + 1h) == start + 1h + 5s);
}

TEST_CASE("many that go at once do not shorten the pause", "[rendezvous][newcomers]") {
  Newcomers newcomers({});
  for (int i = 0; i < 100; ++i) newcomers.went(start);
  CHECK(newcomers.pause_ends(start) == start + 300s);
}

TEST_CASE("a node belongs to the job once it has taken part for long", "[rendezvous][newcomers]") {
  const Newcomers newcomers({});
  CHECK_FALSE(newcomers.settled(std::nullopt, start));
  CHECK_FALSE(newcomers.settled(start, start + 299s));
  CHECK(newcomers.settled(start, start + 300s));
}
