// BatchNorm over the batches of all ranks: 2 ranks with batch B normalise as 1 rank with 2B.
//
// Forward: every rank's mean, variance and count per channel travel in one reduction and are
// combined with weights (Chan, Golub, LeVeque 1983: M2 = sum of n_r * (var_r + (mean_r - mean)^2)),
// so that no precision is lost to sums of squares, and batches may differ in size. Backward: one
// reduction of sum(dy) and sum(dy * (x - mean)). Weight and bias gradients stay local:
// DistributedDataParallel averages them. Same rule as torch.nn.SyncBatchNorm.
//
// A model of BatchNorm2d (1d, 3d) cannot be converted as in Python: a C++ module holds it as a
// typed member, which calls BatchNorm2d's forward whatever is registered in its place. A model
// calls sync_batch_norm() on its BatchNorm2d, or is built of SyncBatchNorm2d, which is a
// BatchNorm2d until synchronize_batch_norms() gives it a group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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

// The parameters and buffers of a batch normalisation, whatever the number of its dimensions.
struct BatchNormParts {
  const torch::nn::BatchNormOptions& options;
  at::Tensor weight, bias;  // Undefined where it is not affine.
  at::Tensor running_mean, running_var, num_batches_tracked;
};

// sync_batch_norm() where it is known that it must reduce.
at::Tensor normalize_over_ranks(const BatchNormParts& parts, const at::Tensor& input,
                                const BatchNormGroup& group);

// "[N, 64, H, W]": of a batch with so many dimensions besides N and the channels.
std::string shape_text(std::size_t dimensions, std::int64_t channels);

// module.forward(input), with the statistics of all ranks in training mode; in evaluation mode
// and in a world of one without replicas it is module.forward(input). input: [N, C, H, W], of a
// BatchNorm1d [N, C] or [N, C, L], of a BatchNorm3d [N, C, D, H, W]; float, double, or with float
// parameters bfloat16 and half; N may differ between ranks and be 0. Collective in training mode,
// forward and backward. On CUDA the host waits for the device only if this rank has a single value
// per channel or none. Throws CommunicatorError; c10::Error for a single value per channel over all
// ranks. Has no second derivatives: a backward with create_graph throws c10::Error.
template <std::size_t Dimensions, class Derived>
at::Tensor sync_batch_norm(torch::nn::BatchNormImplBase<Dimensions, Derived>& module,
                           const at::Tensor& input, const BatchNormGroup& group) {
  if (!module.is_training() || group.is_alone()) return module.forward(input);
  const bool fits = input.dim() == Dimensions + 2 || (Dimensions == 1 && input.dim() == 2);
  const std::int64_t channels = module.options.num_features();
  TORCH_CHECK(fits && channels > 0 && input.size(1) == channels, "sync_batch_norm expects ",
              shape_text(Dimensions, channels), ", got ", input.sizes());
  return normalize_over_ranks({module.options, module.weight, module.bias, module.running_mean,
                               module.running_var, module.num_batches_tracked},
                              input, group);
}

// What synchronize_batch_norms() looks for.
class BatchNormOfGroup {
 public:
  explicit BatchNormOfGroup(BatchNormGroup group) : group_(std::move(group)) {}
  virtual ~BatchNormOfGroup() = default;

  void set_group(BatchNormGroup group) { group_ = std::move(group); }
  const BatchNormGroup& group() const { return group_; }
  bool is_synchronized() const { return !group_.is_alone(); }

 private:
  BatchNormGroup group_;
};

// The same as a module, with the options, parameters and buffers of BatchNorm1d, 2d or 3d.
template <class BatchNorm>
class SyncBatchNormImpl : public BatchNorm, public BatchNormOfGroup {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options,
                             BatchNormGroup group = {})
      : BatchNorm(norm_options), BatchNormOfGroup(std::move(group)) {}

  at::Tensor forward(const at::Tensor& input) { return sync_batch_norm(*this, input, group()); }

  // With the same group. BatchNorm's own would make a BatchNorm. What Cloneable does for a module
  // within another one: the part of the base class is assigned. So a clone of a module that
  // contains this one has no group: call synchronize_batch_norms() on it.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    const auto base = std::dynamic_pointer_cast<BatchNorm>(BatchNorm::clone(device));
    auto copy = std::make_shared<SyncBatchNormImpl>(this->options, group());
    static_cast<BatchNorm&>(*copy) = *base;
    return copy;
  }
};
using SyncBatchNorm1dImpl = SyncBatchNormImpl<torch::nn::BatchNorm1dImpl>;
using SyncBatchNorm2dImpl = SyncBatchNormImpl<torch::nn::BatchNorm2dImpl>;
using SyncBatchNorm3dImpl = SyncBatchNormImpl<torch::nn::BatchNorm3dImpl>;
TORCH_MODULE(SyncBatchNorm1d);
TORCH_MODULE(SyncBatchNorm2d);
TORCH_MODULE(SyncBatchNorm3d);

// Lets every SyncBatchNorm1d, 2d and 3d within the model normalise with the group; returns how many
// there are.
int synchronize_batch_norms(torch::nn::Module& model, const BatchNormGroup& group);

}  // namespace ddprun::worker
