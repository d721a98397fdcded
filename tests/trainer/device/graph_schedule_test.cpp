// Which steps of a run are recorded or replayed, as a table of steps.
#include "trainer/device/graph_schedule.h"

#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::trainer;
using ddprun::testing::contains;

namespace {

constexpr StepWay E = StepWay::Eager, R = StepWay::Record, P = StepWay::Replay;

std::vector<StepWay> ways(GraphSchedule schedule, const std::vector<std::int64_t>& images) {
  std::vector<StepWay> all;
  for (const std::int64_t count : images) all.push_back(schedule.next(count).way);
  return all;
}

}  // namespace

TEST_CASE("after three steps to warm up a step is recorded, and from then on replayed",
          "[trainer][graph]") {
  CHECK(ways(GraphSchedule(8), {8, 8, 8, 8, 8, 8}) == std::vector{E, E, E, R, P, P});
}

TEST_CASE("a step of other images is never of the graph, and warms nothing up",
          "[trainer][graph]") {
  CHECK(ways(GraphSchedule(8), {8, 5, 8, 5, 8, 5, 8, 5, 8, 16, 8}) ==
        std::vector{E, E, E, E, E, E, R, E, P, E, P});
  CHECK(ways(GraphSchedule(8), {5, 5, 5, 5, 5, 5}) == std::vector{E, E, E, E, E, E});
}

TEST_CASE("the first step of each kind says why it is one", "[trainer][graph]") {
  GraphSchedule schedule(8);
  for (int i = 0; i < 3; ++i) CHECK(schedule.next(8).reason.empty());
  CHECK(contains(schedule.next(8).reason, "recorded as a graph, after 3 to warm up"));
  CHECK(schedule.next(8).reason.empty());
  CHECK(schedule.next(5).reason == "a step of 5 images is not of the graph, which has 8");
  CHECK(schedule.next(8).reason.empty());
  CHECK(schedule.next(6).reason.empty());
}
