// Forward and backward of a step that always has the same number of shards, by however many ranks:
// gradients, BatchNorm's running statistics, loss and accuracy have the same bits as with one rank
// a shard.
//
// On a GPU it is the same step, of the same samples, and not the same bits: its kernels and NCCL
// add in an order of their own.
//
// Where the tree over ranks is the rest of the tree over shards, DistributedDataParallel reduces
// what this rank has added up, bucket by bucket, while the backward of its last shard goes on.
// Elsewhere sums go through SliceExchange after backward. On a GPU each rank adds up all that it
// has, and they are always reduced during backward.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/shards/batch_statistics.h"
#include "trainer/shards/shard_sums.h"
#include "trainer/shards/shard_tree.h"
#include "trainer/shards/slice_exchange.h"
#include "worker/communicator.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/reduction_queue.h"

namespace ddprun::trainer {

struct ShardedFigures {
  torch::Tensor loss;       // Scalar: the mean over the images of all shards.
  torch::Tensor counts;     // Of all shards.
  torch::Tensor own_loss;   // Scalar: no number if that of one of this rank's shards is none.
  std::int64_t images = 0;  // Of all shards.
};

class ShardedBatch {
 public:
  // What the communicator's all_reduce promises of its order; AnyBits: nothing, and nothing is
  // asked for, as on a GPU, where not even a shard has the same bits twice.
  enum class Sums { InTreeOrder, InAnyOrder, AnyBits };

  // Model and communicator must outlive it. `shares`: of the communicator's ranks.
  ShardedBatch(const torch::nn::Module& model, worker::Communicator& communicator,
               const ShardShares& shares, Sums sums);

  // What the model must be wrapped with. This object must outlive the wrapped model.
  void prepare(worker::DataParallelOptions& options);

  ShardRange own() const { return own_; }

  // For how long this thread has exchanged sums since the start, but for those that the wrapped
  // model has reduced.
  std::chrono::nanoseconds exposed_communication() const { return exposed_; }

  // Forward and backward of one shard: gradients are added to those that the parameters have.
  // Calls begin_micro_batch() before each forward, and forward_done() before the last backward.
  using Work =
      std::function<void(int shard, const torch::Tensor& images, const torch::Tensor& labels)>;

  // Collective. `images`: of this rank's shards one after the other, as many each. Afterwards the
  // gradients are the mean over all shards. `parallel` is the wrapped model, its gradients cleared.
  ShardedFigures run(worker::DistributedDataParallelBase& parallel, const torch::Tensor& images,
                     const torch::Tensor& labels, const Work& work);

  void begin_micro_batch() { statistics_.begin_micro_batch(); }
  // `loss`: the mean over the shard's images; `counts`: theirs, as batch_counts() has them. They
  // travel while backward computes.
  void forward_done(const torch::Tensor& loss, const torch::Tensor& counts);

 private:
  bool reduces_in_backward() const { return !exchange_ && world_size_ > 1; }
  float* plain_figures() { return host_figures_.data_ptr<float>() + statistics_.size(); }
  // The gradients of this rank's shards, and the sums over all shards of figures_.
  void reduce_after_backward();
  void divide_gradients();

  worker::Communicator& communicator_;
  int world_size_;
  int shards_;
  ShardRange own_;
  std::vector<torch::Tensor> parameters_;
  BatchStatistics statistics_;
  ShardSums sums_;
  torch::Tensor figures_;       // Statistics, loss, two counts: of one shard, then of all.
  torch::Tensor host_figures_;  // The same, or a copy where those are on a GPU.
  torch::Tensor own_loss_;
  bool reducing_ = false;  // The backward of the shard at hand reduces.
  std::shared_ptr<worker::ReductionQueue> queue_;
  std::optional<SliceExchange> exchange_;
  std::optional<FlatSum> total_;  // With the exchange.
  std::chrono::nanoseconds exposed_{0};
};

}  // namespace ddprun::trainer
