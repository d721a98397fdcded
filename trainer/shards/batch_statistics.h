// BatchNorm's running statistics where a step has many shards: one update a step, from the
// statistics of all shards' batches, on every rank.
//
// While the shards of a step run, the modules' buffers hold the statistics of the batch at hand and
// nothing else (momentum 1), which are taken from there; update() puts the running ones back, and
// so does the end of this object in the middle of a step, of which nothing stays then.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class BatchStatistics {
 public:
  // Throws std::invalid_argument for a model with buffers of another kind, which may hold anything.
  // In float32. Those of a GPU are computed with on the host, too, so each shard waits for it once.
  explicit BatchStatistics(const torch::nn::Module& model);
  ~BatchStatistics();
  BatchStatistics(const BatchStatistics&) = delete;
  BatchStatistics& operator=(const BatchStatistics&) = delete;

  std::int64_t size() const { return size_; }  // Numbers that travel.

  void begin_step();
  void begin_shard();
  // Before each forward. Those of one shard count alike.
  void begin_micro_batch();
  // Copies the shard's statistics: the means over its micro batches.
  void take(float* to) const;
  // `sums`: over the shards of the step, as take() has them. Ends the step.
  void update(const float* sums, int shards);

 private:
  bool on_host() const { return buffers_.empty() || buffers_.front().is_cpu(); }
  void write(const float* from) const;
  std::vector<std::int64_t> read_batches() const;  // By norm.
  // Ends the step: `running` and so many batches more.
  void end_step(const float* running, std::int64_t more);

  struct Norm {
    std::shared_ptr<torch::nn::BatchNorm2dImpl> module;
    double momentum;
    std::int64_t batches;  // Before the step.
  };
  std::vector<Norm> norms_;
  std::vector<torch::Tensor> buffers_;  // Means and variances.
  std::vector<double> momenta_;         // Of each buffer.
  std::vector<float> running_;          // Of before the step.
  std::int64_t size_ = 0;
  int micro_batches_ = 0;  // Of the shard.
  bool in_step_ = false;
};

}  // namespace ddprun::trainer
