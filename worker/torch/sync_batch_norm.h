// BatchNorm over the batches of all ranks: 2 ranks with batch B normalise as 1 rank with 2B.
//
// Forward: every rank's mean, variance and count per channel travel in one reduction and are
// combined with weights (Chan, Golub, LeVeque 1983: M2 = sum of n_r * (var_r + (mean_r - mean)^2)),
// so that no precision is lost to sums of squares, and batches may differ in size. Backward: one
// reduction of sum(dy) and sum(dy * (x - mean)). Weight and bias gradients stay local:
// DistributedDataParallel averages them. Same rule as torch.nn.SyncBatchNorm.
//
// A model of BatchNorm2d cannot be converted as in Python: a C++ module holds it as a typed
// member, which calls BatchNorm2d's forward whatever is registered in its place. A model calls
// sync_batch_norm() on its BatchNorm2d, or is built of SyncBatchNorm2d, which is a BatchNorm2d
// until synchronize_batch_norms() gives it a group.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/reduction_queue.h"
#include "worker/torch/replica_meeting.h"

namespace ddprun::worker {

// The ranks that normalise together. The queue must be the one that DataParallelOptions.queue
// names, so that these reductions and those of the buckets have one order on all ranks. Replicas of
// a DataParallel meet within their rank first (DataParallelReplicas::synchronize_batch_norms).
struct BatchNormGroup {
  std::shared_ptr<ReductionQueue> queue;
  int rank = 0;
  int world_size = 1;
  std::shared_ptr<ReplicaMeeting> meeting = {};  // Null: this rank has one replica.
  std::size_t replica = 0;

  bool is_alone() const { return world_size == 1 && meeting == nullptr; }
};

// module.forward(input), with the statistics of all ranks in training mode; in evaluation mode
// and in a world of one without replicas it is module.forward(input). input: [N, C, H, W], float,
// double, or with float parameters bfloat16 and half; N may differ between ranks and be 0.
// Collective in training mode, forward and backward. On CUDA the host waits for the device only if
// this rank has a single value per channel or none. Throws CommunicatorError; c10::Error for a
// single value per channel over all ranks. Has no second derivatives: a backward with create_graph
// throws c10::Error.
at::Tensor sync_batch_norm(torch::nn::BatchNorm2dImpl& module, const at::Tensor& input,
                           const BatchNormGroup& group);

// The same as a module, with BatchNorm2d's options, parameters and buffers.
class SyncBatchNorm2dImpl : public torch::nn::BatchNorm2dImpl {
 public:
  explicit SyncBatchNorm2dImpl(const torch::nn::BatchNormOptions& norm_options,
                               BatchNormGroup group = {})
      : BatchNorm2dImpl(norm_options), group_(std::move(group)) {}

  void set_group(BatchNormGroup group) { group_ = std::move(group); }

  bool is_synchronized() const { return !group_.is_alone(); }

  at::Tensor forward(const at::Tensor& input) { return sync_batch_norm(*this, input, group_); }

  // With the same group. BatchNorm2dImpl's own would make a BatchNorm2d.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  BatchNormGroup group_;
};
TORCH_MODULE(SyncBatchNorm2d);

// Lets every SyncBatchNorm2d within the model normalise with the group; returns how many there are.
int synchronize_batch_norms(torch::nn::Module& model, const BatchNormGroup& group);

}  // namespace ddprun::worker
