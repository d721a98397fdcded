// When is a line due in a file or a pipe, which keep every line for good? A run of a minute and one
// of a week should both be followed, so lines come by time, and the longer the run the seldomer.
//
//   the first step               a line: it runs, and how fast
//   then                         10 s after the line before, 20 s, 40 s, and each minute at last
//   a line for another reason    (an epoch's end) counts: nothing follows it at once
//
// A core: the time is an argument.
#pragma once

#include <algorithm>

namespace ddprun::trainer {

class LineSchedule {
 public:
  static constexpr double first_gap_s = 10;
  static constexpr double gap_max_s = 60;

  // A step or a batch is done at `now_s`, on a clock that never goes back. True: print a line.
  bool due(double now_s) const { return now_s >= due_s_; }

  // A line of progress was printed.
  void printed(double now_s) {
    due_s_ = now_s + gap_s_;
    gap_s_ = std::min(2 * gap_s_, gap_max_s);
  }

  // A line that says as much was printed.
  void told_otherwise(double now_s) { due_s_ = std::max(due_s_, now_s + gap_s_); }

 private:
  double due_s_ = 0;
  double gap_s_ = first_gap_s;
};

}  // namespace ddprun::trainer
