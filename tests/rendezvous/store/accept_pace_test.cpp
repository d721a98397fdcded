// How often strangers wake the launcher, on a clock that the test turns.
#include "rendezvous/store/accept_pace.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const AcceptPace::Clock::time_point start = AcceptPace::Clock::time_point{} + 1h;

// Batches of which `a_second` strangers are accepted in `seconds`.
int batches(AcceptPace& pace, int a_second, int seconds) {
  const auto interval = std::chrono::microseconds(1'000'000) / a_second;
  auto looks_again = start;
  int count = 0;
  std::size_t wait = 0;
  for (auto now = start; now < start + seconds * 1s; now += interval) {
    ++wait;
    if (now < looks_again) continue;
    ++count;
    looks_again = now + pace.note(std::exchange(wait, 0), now);
  }
  return count;
}

}  // namespace

TEST_CASE("15.6: a crowd of strangers is accepted in 50 batches a second", "[accept_pace]") {
  for (const int a_second : {200, 1'000, 50'000}) {
    AcceptPace pace;
    const int count = batches(pace, a_second, 10);
    INFO(a_second << " a second");
    CHECK(count <= AcceptPace::at_once_max * 2 + 10 * 50);
  }
}

TEST_CASE("some strangers, and all who belong here, are accepted as they come", "[accept_pace]") {
  AcceptPace pace;
  CHECK(batches(pace, 50, 10) == 500);
  for (int agent = 0; agent < 10'000; ++agent) CHECK(pace.note(0, start + 10s) == 0ms);
}

TEST_CASE("after a crowd the next one is accepted at once", "[accept_pace]") {
  AcceptPace pace;
  CHECK(pace.note(1'000'000, start) == AcceptPace::rest);
  CHECK(pace.note(1, start + AcceptPace::rest - 1ms) == AcceptPace::rest);
  CHECK(pace.note(1, start + 1s) == 0ms);
}
