// Counts whole steps; others never come to the graph, whose memory has one size.
#include "trainer/device/graph_schedule.h"

#include <fmt/format.h>

#include <utility>

namespace ddprun::trainer {

GraphDecision GraphSchedule::next(std::int64_t images) {
  if (images != whole_) {
    if (std::exchange(other_told_, true)) return {};
    return {StepWay::Eager,
            fmt::format("a step of {} images is not of the graph, which has {}", images, whole_)};
  }
  if (whole_steps_ > warm_up_steps) return {StepWay::Replay};
  if (whole_steps_++ < warm_up_steps) return {};
  return {StepWay::Record, fmt::format("it is recorded as a graph, after {} to warm up; later ones "
                                       "of {} images are its replays",
                                       warm_up_steps, whole_)};
}

}  // namespace ddprun::trainer
