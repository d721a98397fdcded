// Which steps of a run are recorded as a graph or are replays of it, and which are not
// (--cuda-graph). The answer depends on what all ranks have alike: a replay brings its collectives
// along, so all ranks must record and replay the same steps. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::trainer {

enum class StepWay { Eager, Record, Replay };

struct GraphDecision {
  StepWay way = StepWay::Eager;
  std::string reason = "";  // In words, where it is the first of its kind; else empty.
};

class GraphSchedule {
 public:
  // Of whole steps. In the first one momentum and averages get their memory, cuDNN tries out its
  // convolutions, and the ranks agree on the order of gradients; in the second one all lies where
  // it stays.
  static constexpr int warm_up_steps = 3;

  // `whole`: images of a step of this rank, as most steps have it.
  explicit GraphSchedule(std::int64_t whole) : whole_(whole) {}

  // Of the next step, which has so many images. Record: also replay it, for a recording computes
  // nothing.
  GraphDecision next(std::int64_t images);

 private:
  const std::int64_t whole_;
  int whole_steps_ = 0;  // So far, up to the recorded one.
  bool other_told_ = false;
};

}  // namespace ddprun::trainer
