// When the store looks for its next request and when it sleeps beside those who compute, on a clock
// that the test turns.
#include "rendezvous/store/linger_policy.h"

#include "tests/testing/catch.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Clock = LingerPolicy::Clock;

const Clock::time_point start = Clock::time_point{} + 1h;

// A yield at `at` from which the processor came back after `took`; the pause that follows.
Clock::duration pause_after(LingerPolicy& policy, Clock::time_point at, Clock::duration took) {
  policy.note_yield(at, at + took);
  auto pause = 0ms;
  while (policy.crowded(at + took + pause)) pause += 1ms;
  return pause;
}

TEST_CASE("the store looks for a request for 50 us after the last one", "[linger]") {
  const LingerPolicy policy;
  CHECK(policy.lingers(start, start));
  CHECK(policy.lingers(start + 49us, start));
  CHECK_FALSE(policy.lingers(start + 50us, start));
}

TEST_CASE("a short yield changes nothing, a long one sends the store to sleep", "[linger]") {
  LingerPolicy policy;
  CHECK(pause_after(policy, start, 500us) == 0ms);
  CHECK(policy.lingers(start + 500us, start + 500us));
  CHECK(pause_after(policy, start, 501us) == 2ms);
  CHECK_FALSE(policy.lingers(start + 501us, start + 501us));
  CHECK(policy.lingers(start + 501us + 2ms, start + 501us + 2ms));
}

TEST_CASE("long yields one after the other double the pause up to its limit", "[linger]") {
  LingerPolicy policy;
  auto now = start;
  for (const auto expected : {2ms, 4ms, 8ms, 16ms, 32ms, 64ms, 100ms, 100ms}) {
    CHECK(pause_after(policy, now, 4ms) == expected);
    now += 4ms + expected;
  }
}

TEST_CASE("a long yield after a good while counts as the first", "[linger]") {
  LingerPolicy policy;
  CHECK(pause_after(policy, start, 1ms) == 2ms);
  CHECK(pause_after(policy, start + 3ms, 1ms) == 4ms);        // At once after the pause.
  CHECK(pause_after(policy, start + 8ms + 4ms, 1ms) == 2ms);  // As long after it as it lasted.
}

}  // namespace
}  // namespace ddprun::rendezvous
