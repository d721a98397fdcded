// The learning rate of a step, from the options and the position in training alone.
#pragma once

#include <cstdint>

namespace ddprun::trainer {

enum class LearningRateSchedule {
  Step,    // Divided by ten every step_epochs epochs.
  Cosine,  // From the base rate to zero at the last step, along half a cosine.
};

struct LearningRateOptions {
  double base = 0.1;
  LearningRateSchedule schedule = LearningRateSchedule::Step;
  std::int64_t step_epochs = 30;
  std::int64_t warmup_steps = 0;  // The first steps rise linearly up to the schedule's rate.
};

// step: optimizer steps done before this one, over all epochs; epoch: full epochs done;
// total_steps: of the whole run.
double learning_rate_at(const LearningRateOptions& options, std::int64_t step, std::int64_t epoch,
                        std::int64_t total_steps);

}  // namespace ddprun::trainer
