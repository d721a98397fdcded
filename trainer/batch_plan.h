// How many images a step takes and how many steps training has: arithmetic over the options, the
// data and the number of workers. A core: no sockets, threads or clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trainer/models/image_classifier.h"
#include "trainer/options/train_options.h"

namespace ddprun::trainer {

struct BatchPlan {
  // Who take a batch each in a step, and side by side the samples of an epoch: the workers, or with
  // --shards the shards. They are what "worker" means below.
  int replicas = 1;
  std::int64_t batch_size = 0;          // Of a step, per worker: all its micro batches.
  std::int64_t micro_batch_size = 0;    // Of one forward; the last of a step may be smaller.
  std::int64_t global_batch_size = 0;   // Of a step, of all workers.
  std::int64_t samples_per_worker = 0;  // Of an epoch, padded so that all workers have as many.
  std::int64_t steps_per_epoch = 0;     // The last batch of an epoch may be smaller.
  std::int64_t total_steps = 0;         // Of the run, unless it ends earlier by an error.
  std::int64_t last_batch_size = 0;     // Of an epoch, per worker.
  // Of a run that has gone on: the steps that this plan has up to there less those that were done,
  // which other numbers of workers or images per step may have taken.
  std::int64_t steps_ahead = 0;

  std::int64_t last_micro_batch_size() const;  // Of last_batch_size.
};

// How many epochs the run has, the last one whole or not.
inline std::int64_t epochs_of(const BatchPlan& plan) {
  const std::int64_t steps = std::max<std::int64_t>(1, plan.steps_per_epoch);
  return (plan.total_steps + plan.steps_ahead + steps - 1) / steps;
}

// What becomes of a --global-batch-size that the workers cannot share evenly. Rounded: down to one
// that they can, for a job that has begun, and goes on with another number of workers.
enum class UnevenBatch { Refused, Rounded };

// The sizes of batches alone, as for --evaluate. Throws UsageError for a batch that the workers
// cannot share, and for shards that are too few for them.
BatchPlan plan_batch_sizes(const TrainOptions& options, int world_size,
                           UnevenBatch uneven = UnevenBatch::Refused);

// For training. Throws UsageError as above, and for a batch that is larger than the data.
BatchPlan plan_batches(const TrainOptions& options, std::int64_t dataset_size, int world_size,
                       UnevenBatch uneven = UnevenBatch::Refused);

// Whether the last micro batch of an epoch is more than a single image that batch normalisation
// cannot be trained on. workers: how many normalise together (--sync-bn).
bool can_train_last_batch(const BatchPlan& plan, const ImageClassifier& model,
                          std::int64_t image_size, int workers);

// Throws UsageError where it is not.
void check_last_batch(const BatchPlan& plan, const ImageClassifier& model, std::int64_t image_size,
                      int workers);

}  // namespace ddprun::trainer
