// Looks at times of this test's own choice.
#include "worker/peers/awake_time.h"

#include "tests/testing/catch.h"

using namespace std::chrono_literals;
using ddprun::worker::AwakeTime;

namespace {
constexpr AwakeTime::TimePoint start{1000s};
}

TEST_CASE("time passes from look to look, also where a busy machine holds one up", "[worker]") {
  AwakeTime time;
  CHECK(time.at(start) == start);
  CHECK(time.at(start + 1s) == start + 1s);
  CHECK(time.at(start + 1s + AwakeTime::halt_min) == start + 1s + AwakeTime::halt_min);
}

TEST_CASE("a halt counts as one look, and each does", "[worker]") {
  AwakeTime time;
  time.at(start);
  CHECK(time.at(start + 1h) == start + AwakeTime::look);
  CHECK(time.at(start + 1h + 500ms) == start + AwakeTime::look + 500ms);
  CHECK(time.at(start + 2h) == start + 2 * AwakeTime::look + 500ms);
}

TEST_CASE("who waits looks again at its limit, or after the time between two looks", "[worker]") {
  AwakeTime time;
  time.at(start);
  CHECK(time.next_look(start + 300ms) == start + 300ms);
  CHECK(time.next_look(start + 600s) == start + AwakeTime::look);

  const auto awake = time.at(start + 1h);
  CHECK(time.next_look(awake + 300ms) == start + 1h + 300ms);
  CHECK(time.next_look(awake + 600s) == start + 1h + AwakeTime::look);
}
