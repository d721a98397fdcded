// The learning rate of a step, from the options and the position in training alone.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ddprun::trainer {

enum class LearningRateSchedule {
  Step,       // Times gamma every step_epochs epochs, or at the milestones if there are any.
  MultiStep,  // Times gamma at each milestone.
  Cosine,     // From the base rate along half a cosine, at zero one step after the last.
};

// For what the base rate was chosen, when it is not this run: it is scaled in proportion.
struct LearningRateReference {
  std::int64_t global_batch_size = 0;  // 0: for one worker, so the rate grows with their number.
};

struct LearningRateOptions {
  double base = 0.1;
  LearningRateSchedule schedule = LearningRateSchedule::Step;
  std::int64_t step_epochs = 30;
  std::vector<std::int64_t> milestones;  // Epochs, ascending.
  double gamma = 0.1;
  std::int64_t warmup_steps = 0;   // The first steps rise linearly up to the schedule's rate.
  std::int64_t warmup_epochs = 0;  // The same in epochs; one of the two is 0.
  bool warmup_by_epochs = false;   // warmup_steps are what epochs were resolved to.
  std::optional<LearningRateReference> reference;
};

// The same with a base for this run and the warm-up in steps: what learning_rate_at() takes.
LearningRateOptions resolve_learning_rate(LearningRateOptions options, std::int64_t steps_per_epoch,
                                          std::int64_t global_batch_size, int world_size);

// Where in its training a run is.
struct SchedulePlace {
  std::int64_t step = 0;         // Optimizer steps done before this one, over all epochs.
  std::int64_t epoch = 0;        // Full epochs done.
  std::int64_t total_steps = 0;  // Of the whole run.
  // How many more steps a run would have done up to the same place in the data that had always had
  // as many workers and images per step as this one has now.
  std::int64_t ahead = 0;
  bool by_steps = false;  // The run ends after total_steps, wherever in the data that is.
};

// The rate follows the data, so that a job that goes on with fewer workers does not fall back. What
// was asked for in steps counts those that were done: a warm-up in steps, and the cosine of a run
// by steps.
double learning_rate_at(const LearningRateOptions& options, const SchedulePlace& place);

}  // namespace ddprun::trainer
