// Memory of the communicator's for what a hook sends in the place of a bucket: made when a bucket
// is met for the first time, and kept until clear().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "worker/torch/communication_hook.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {

class BucketMemory {
 public:
  // Flat, of so many elements. Collective: all ranks ask for the same.
  at::Tensor get(const GradientBucket& bucket, std::int64_t count, at::ScalarType type,
                 Communicator& communicator) {
    at::Tensor& memory = memories_[bucket.index];
    const bool fits = memory.defined() && memory.scalar_type() == type && memory.numel() >= count;
    if (!fits) {
      memory.reset();  // First, or there would be both.
      const auto bytes = static_cast<std::size_t>(count) * c10::elementSize(type);
      memory = allocate_tensor(communicator, bytes, type, bucket.values.device());
    }
    return memory.narrow(0, 0, count);
  }

  // When the wrapper ends, and before its communicator: another one's ranks would not all have it,
  // and who has does not take part in allocating.
  void clear() noexcept { memories_.clear(); }

 private:
  std::map<std::size_t, at::Tensor> memories_;  // By the bucket's index.
};

}  // namespace ddprun::worker
