// A function of the position without memory, so that a resumed run needs no scheduler's state.
#include "trainer/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddprun::trainer {
namespace {

// Which of the steps that the cosine counts is its first. A run by steps counts those that were
// done, one by epochs those of its place in the data, and so does a warm-up by its own unit. How
// many of the other ones a warm-up took is not kept: as many as all up to here have taken on
// average. That is what they were, or near it, and no change of workers or batches moves the rate.
double cosine_begin(const LearningRateOptions& options, const SchedulePlace& place) {
  const auto warmup = static_cast<double>(options.warmup_steps);
  const auto done = static_cast<double>(std::max<std::int64_t>(1, place.step));
  const auto in_data = static_cast<double>(std::max<std::int64_t>(1, place.step + place.ahead));
  if (place.by_steps) return options.warmup_by_epochs ? warmup * done / in_data : warmup;
  return options.warmup_by_epochs ? warmup : warmup * in_data / done;
}

double cosine_factor(const LearningRateOptions& options, const SchedulePlace& place) {
  const std::int64_t ahead = place.by_steps ? 0 : place.ahead;
  const double begin = cosine_begin(options, place);
  const double length = std::max(1.0, static_cast<double>(place.total_steps + ahead) - begin);
  const double done =
      std::clamp((static_cast<double>(place.step + ahead) - begin) / length, 0.0, 1.0);
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

// By how much the schedule has changed the base rate.
double schedule_factor(const LearningRateOptions& options, const SchedulePlace& place) {
  if (options.schedule == LearningRateSchedule::Cosine) return cosine_factor(options, place);
  const std::int64_t drops =
      options.milestones.empty()
          ? place.epoch / options.step_epochs
          : std::upper_bound(options.milestones.begin(), options.milestones.end(), place.epoch) -
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

double learning_rate_at(const LearningRateOptions& options, const SchedulePlace& place) {
  const double rate = options.base * schedule_factor(options, place);
  const std::int64_t warmed_up = place.step + (options.warmup_by_epochs ? place.ahead : 0);
  if (warmed_up >= options.warmup_steps) return rate;
  return rate * static_cast<double>(warmed_up + 1) / static_cast<double>(options.warmup_steps);
}

}  // namespace ddprun::trainer
