// After which epochs is the page of --report written? Each time all of the metrics are read for it,
// which takes the longer the longer the run is; and training waits.
//
//   the first epoch     the page: people want to see that there is one
//   then                as often as all of it takes no more than a hundredth of the time
//   the end             (not asked here) always
//
// A core: the time is an argument.
#pragma once

namespace ddprun::trainer {

class PageSchedule {
 public:
  static constexpr double share_max = 0.01;

  // An epoch is done at `now_s`, on a clock that never goes back. True: write the page.
  bool due(double now_s) const { return now_s >= due_s_; }

  // From `began_s` to `ended_s` it was written, or that was tried.
  void written(double began_s, double ended_s) {
    due_s_ = began_s + (ended_s - began_s) / share_max;
  }

 private:
  double due_s_ = 0;
};

}  // namespace ddprun::trainer
