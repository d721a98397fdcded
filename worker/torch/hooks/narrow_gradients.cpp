// A cast, an all-reduce, a cast back.
#include "worker/torch/hooks/narrow_gradients.h"

#include <stdexcept>
#include <string>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {

NarrowGradients::NarrowGradients(at::ScalarType type) : type_(type) {
  if (type != at::kBFloat16 && type != at::kHalf) {
    throw std::invalid_argument("NarrowGradients: gradients travel as BFloat16 or Half, not as " +
                                std::string(at::toString(type)));
  }
}

void NarrowGradients::reduce(const GradientBucket& bucket, Communicator& communicator) {
  if (bucket.values.scalar_type() != at::kFloat) {
    return all_reduce(communicator, bucket.values, bucket.op);
  }
  const at::Tensor narrow =
      memory_.get(bucket, bucket.values.numel(), type_, communicator).copy_(bucket.values);
  all_reduce(communicator, narrow, bucket.op);
  bucket.values.copy_(narrow);
}

void NarrowGradients::give_back() noexcept {
  memory_.clear();
  taken_ = false;
}

std::string NarrowGradients::description() const {
  return std::string("gradients as ") + at::toString(type_);
}

}  // namespace ddprun::worker
