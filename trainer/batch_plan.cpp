// All roundings in one file: ranks that rounded differently would wait for each other for ever.
#include "trainer/batch_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/data/divide_up.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t batch_size_by_default = 64;

const char* replicas_text(const TrainOptions& options) {
  return options.shards ? "shards" : "workers";
}

int replicas_of(const TrainOptions& options, int world_size) {
  const int replicas = options.shards.value_or(world_size);
  if (replicas >= world_size) return replicas;
  throw UsageError(fmt::format(
      "--shards {}: {} workers are more than that, and each takes one shard at least: start at "
      "most {} workers, or train with more shards",
      replicas, world_size, replicas));
}

// Each replica takes one image of each of its micro batches at least.
std::string advice_on_large_batch(const TrainOptions& options, int replicas, std::int64_t images) {
  if (replicas > images) {
    return fmt::format("{} at most {} {}", options.shards ? "train with" : "start", images,
                       replicas_text(options));
  }
  if (replicas * options.accumulate <= images) return "choose a smaller one";
  return fmt::format("--accumulate can be {} at most", images / replicas);
}

}  // namespace

std::int64_t BatchPlan::last_micro_batch_size() const {
  return last_batch_size - (divide_up(last_batch_size, micro_batch_size) - 1) * micro_batch_size;
}

BatchPlan plan_batch_sizes(const TrainOptions& options, int world_size, UnevenBatch uneven) {
  BatchPlan plan;
  plan.replicas = replicas_of(options, world_size);
  plan.micro_batch_size = options.batch_size.value_or(batch_size_by_default);
  if (options.global_batch_size) {
    const std::int64_t parts = plan.replicas * options.accumulate;
    const bool may_round = uneven == UnevenBatch::Rounded && *options.global_batch_size > parts;
    if (*options.global_batch_size % parts != 0 && !may_round) {
      throw UsageError(fmt::format(
          "--global-batch-size {} cannot be shared evenly by {} {}{}: give a multiple of {}",
          *options.global_batch_size, plan.replicas, replicas_text(options),
          options.accumulate > 1 ? fmt::format(" with --accumulate {}", options.accumulate) : "",
          parts));
    }
    plan.micro_batch_size = *options.global_batch_size / parts;
  }
  plan.batch_size = plan.micro_batch_size * options.accumulate;
  plan.global_batch_size = plan.batch_size * plan.replicas;
  return plan;
}

BatchPlan plan_batches(const TrainOptions& options, std::int64_t dataset_size, int world_size,
                       UnevenBatch uneven) {
  BatchPlan plan = plan_batch_sizes(options, world_size, uneven);
  if (plan.global_batch_size > dataset_size) {
    throw UsageError(fmt::format(
        "a batch of {} images ({} {}{} x {} {}) is larger than the data, which has {}: {}",
        plan.global_batch_size, options.global_batch_size ? "--global-batch-size" : "--batch-size",
        plan.micro_batch_size,
        options.accumulate > 1 ? fmt::format(" x --accumulate {}", options.accumulate) : "",
        plan.replicas, replicas_text(options), dataset_size,
        advice_on_large_batch(options, plan.replicas, dataset_size)));
  }
  // Rounded up, as the sampler pads: a rank with a step less would leave the others waiting.
  plan.samples_per_worker = divide_up(dataset_size, plan.replicas);
  plan.steps_per_epoch = divide_up(plan.samples_per_worker, plan.batch_size);
  plan.last_batch_size = plan.samples_per_worker - (plan.steps_per_epoch - 1) * plan.batch_size;
  // --steps without --epochs means epochs without end: their product must not overflow.
  const std::int64_t epochs =
      std::min(options.epochs_max(),
               divide_up(std::numeric_limits<std::int64_t>::max() / 2, plan.steps_per_epoch));
  plan.total_steps = epochs * plan.steps_per_epoch;
  if (options.steps) plan.total_steps = std::min(plan.total_steps, *options.steps);
  return plan;
}

bool can_train_last_batch(const BatchPlan& plan, const ImageClassifier& model,
                          std::int64_t image_size, int workers) {
  return plan.last_micro_batch_size() * workers > 1 || image_size > model.normalized_stride();
}

void check_last_batch(const BatchPlan& plan, const ImageClassifier& model, std::int64_t image_size,
                      int workers) {
  if (can_train_last_batch(plan, model, image_size, workers)) return;
  throw UsageError(fmt::format(
      "the last batch of an epoch would hold one image per worker ({} = {} x {} + 1), which batch "
      "normalisation cannot be trained on at {} pixels: choose another --batch-size{}",
      plan.samples_per_worker, (plan.samples_per_worker - 1) / plan.micro_batch_size,
      plan.micro_batch_size, image_size,
      plan.global_batch_size > plan.batch_size ? ", or use --sync-bn" : ""));
}

}  // namespace ddprun::trainer
