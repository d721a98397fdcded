// The time in which this process runs, which the limits of its waits are about. A job that is
// halted as a whole (Ctrl-Z, Slurm's suspend, a paused container) for longer than such a limit has
// no rank that is late when it goes on.
//
//   looks:     |  |  |                          |  |
//   at(now):   0  1  2        (halted)          3  4
//
// Known by the gap: who waits looks each `look`, and a gap of more than `halt_min` between two of
// its looks counts as one. So does one between two waits, whose limits it has no part in.
// A core: no clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace ddprun::worker {

// Of one thread at a time.
class AwakeTime {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds look{1'000};
  static constexpr std::chrono::milliseconds halt_min{3'000};  // A busy machine holds up a look.

  // A look, at `now` of the machine.
  TimePoint at(TimePoint now) {
    const auto gap = now - last_.value_or(now);
    if (gap > halt_min) halted_ += gap - look;
    last_ = now;
    return now - halted_;
  }

  // When a wait for `then`, a time of this object's, has to look next; of the machine's time.
  TimePoint next_look(TimePoint then) const {
    return std::min(then + halted_, last_.value_or(TimePoint{}) + look);
  }

 private:
  std::optional<TimePoint> last_;
  TimePoint::duration halted_{};
};

}  // namespace ddprun::worker
