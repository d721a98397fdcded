// How long steps take a device that the host runs ahead of: the mean over those between two points
// at which the host has waited for it, since then all of them are done and nothing else is.
//
//   step  step  step  wait for the device | step  step ...
//   |<--------- their own time ---------->|
//
// A core: times in, a pace out.
#pragma once

#include <optional>

#include "trainer/shards/shard_balance.h"

namespace ddprun::trainer {

class DevicePace {
 public:
  // The host has queued a step, for which it needed so long since the one before.
  void queued(double host_s) {
    seconds_ += host_s;
    ++steps_;
  }

  // The host has waited so long for the device, which has done them all. `exposed_s`: for how long
  // other ranks were waited for in them.
  void done(double waited_s, double exposed_s) {
    if (steps_ == 0) return;
    const double step_s = (seconds_ + waited_s) / steps_;
    pace_ = StepPace{.own_s = step_s - exposed_s / steps_, .step_s = step_s};
    seconds_ = 0;
    steps_ = 0;
  }

  // Of the steps before the last done(); nothing before the first.
  const std::optional<StepPace>& pace() const { return pace_; }

 private:
  double seconds_ = 0;
  int steps_ = 0;
  std::optional<StepPace> pace_;
};

}  // namespace ddprun::trainer
