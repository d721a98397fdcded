// See padded_conv.h.
#include "trainer/models/padded_conv.h"

namespace ddprun::trainer {

torch::Tensor PaddedConv::forward(const torch::Tensor& x) {
  const std::int64_t kernel = weight.size(2);
  if (kernel == 1 || x.size(2) != 1 || x.size(3) != 1) return Conv2dImpl::forward(x);
  const torch::Tensor middle = weight.flatten(2).select(2, kernel * kernel / 2);  // (out, in)
  return torch::linear(x.flatten(1), middle).unsqueeze(2).unsqueeze(3);
}

}  // namespace ddprun::trainer
