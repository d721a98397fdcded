// Options of `train`: the optimizer, its schedule and how long training takes.
#include <limits>

#include "trainer/options_parts.h"

namespace ddprun::trainer {

void add_training_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Training");
  add_count(app, "--epochs", options.epochs, 0, count_max, "Passes over the data [90]");
  add_count(app, "--steps", options.steps, 1, count_max, "End after so many optimizer steps");
  add_count(app, "--batch-size", options.batch_size, 1, count_max,
            "Images per step, per worker [64]");
  add_count(app, "--global-batch-size", options.global_batch_size, 1, count_max,
            "Images per step over all workers, instead of --batch-size");
  app.add_option("--lr", options.learning_rate.base, "Learning rate")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  add_choice<LearningRateSchedule>(
      app, "--lr-schedule", options.learning_rate.schedule,
      {{"step", LearningRateSchedule::Step}, {"cosine", LearningRateSchedule::Cosine}},
      "step: divided by 10 every --lr-step-epochs; cosine: to 0 at "
      "the last step");
  add_count(app, "--lr-step-epochs", options.learning_rate.step_epochs, 1, count_max,
            "Epochs between divisions of the learning rate");
  add_count(app, "--warmup-steps", options.learning_rate.warmup_steps, 0, count_max,
            "Steps over which the learning rate rises at first");
  app.add_option("--momentum", options.momentum, "SGD's momentum")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay, "SGD's weight decay")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of initial weights and sample order")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()).description(""))
      ->capture_default_str();
}

void check_training_options(const TrainOptions& options) {
  refuse_if(options.batch_size && options.global_batch_size,
            "--batch-size (per worker) and --global-batch-size (of all workers) contradict each "
            "other: give one");
}

}  // namespace ddprun::trainer
