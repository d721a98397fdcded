// See learning_rate.h.
#include "trainer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddprun::trainer {

double learning_rate_at(const LearningRateOptions& options, std::int64_t step, std::int64_t epoch,
                        std::int64_t total_steps) {
  if (step < options.warmup_steps) {
    return options.base * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  if (options.schedule == LearningRateSchedule::Step) {
    return options.base * std::pow(0.1, static_cast<double>(epoch / options.step_epochs));
  }
  const auto length =
      static_cast<double>(std::max<std::int64_t>(1, total_steps - options.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - options.warmup_steps) / length);
  return options.base * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace ddprun::trainer
