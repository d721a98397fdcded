// A function of the position without memory, so that a resumed run needs no scheduler's state.
#include "trainer/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddprun::trainer {
namespace {

// By how much the schedule has changed the base rate.
double schedule_factor(const LearningRateOptions& options, std::int64_t step, std::int64_t epoch,
                       std::int64_t total_steps) {
  if (options.schedule == LearningRateSchedule::Cosine) {
    const auto length =
        static_cast<double>(std::max<std::int64_t>(1, total_steps - options.warmup_steps));
    const double done =
        std::clamp(static_cast<double>(step - options.warmup_steps) / length, 0.0, 1.0);
    return 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  const std::int64_t drops =
      options.milestones.empty()
          ? epoch / options.step_epochs
          : std::upper_bound(options.milestones.begin(), options.milestones.end(), epoch) -
                options.milestones.begin();
  return std::pow(options.gamma, static_cast<double>(drops));
}

}  // namespace

LearningRateOptions resolve_learning_rate(LearningRateOptions options, std::int64_t steps_per_epoch,
                                          std::int64_t global_batch_size, int world_size) {
  options.warmup_steps += options.warmup_epochs * steps_per_epoch;
  options.warmup_by_epochs = options.warmup_epochs > 0;
  options.warmup_epochs = 0;
  if (options.reference) {
    const std::int64_t batch = options.reference->global_batch_size;
    options.base *= batch > 0 ? static_cast<double>(global_batch_size) / static_cast<double>(batch)
                              : static_cast<double>(world_size);
    options.reference.reset();
  }
  return options;
}

double learning_rate_at(const LearningRateOptions& options, std::int64_t step, std::int64_t epoch,
                        std::int64_t total_steps, std::int64_t ahead) {
  const double rate = options.base * schedule_factor(options, step, epoch, total_steps);
  const std::int64_t warmed_up = options.warmup_by_epochs ? step : step - ahead;
  if (warmed_up >= options.warmup_steps) return rate;
  return rate * static_cast<double>(warmed_up + 1) / static_cast<double>(options.warmup_steps);
}

}  // namespace ddprun::trainer
