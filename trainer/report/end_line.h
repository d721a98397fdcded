// What a run that was not stopped leaves on the console at last.
//
// Values in, text out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::trainer {

struct RunEnd {
  std::int64_t step = 0;            // Of the run.
  std::optional<double> best_top1;  // In percent; nothing: no validation.
  std::int64_t images = 0;          // That all workers trained on, since this start.
  std::int64_t steps = 0;           // Of each worker, since this start.
  double training_s = 0;            // In these.
  double seconds = 0;               // Of this start, in all.
};

std::string end_line(const RunEnd& run);

}  // namespace ddprun::trainer
