// Gradients of float travel in 16 bits, half the bytes: PyTorch's bf16_compress_hook and
// fp16_compress_hook.
//
// On the CPU and over MPI sums are taken in float and rounded once; NCCL may round each time that
// one more rank is added. fp16 has three more bits than bf16, and no number above 65,504. Costs two
// passes over the gradients, and memory of half their size.
#pragma once

#include <atomic>
#include <string>

#include "worker/torch/communication_hook.h"
#include "worker/torch/hooks/bucket_memory.h"

namespace ddprun::worker {

class NarrowGradients : public CommunicationHook {
 public:
  // at::kBFloat16 or at::kHalf; std::invalid_argument otherwise.
  explicit NarrowGradients(at::ScalarType type);

  void reduce(const GradientBucket& bucket, Communicator& communicator) override;
  std::string description() const override;
  // Two modules' buckets have the same numbers, and would share the memory of each.
  bool take() noexcept override { return !taken_.exchange(true); }
  void give_back() noexcept override;

 private:
  at::ScalarType type_;
  BucketMemory memory_;
  std::atomic<bool> taken_{false};
};

}  // namespace ddprun::worker
