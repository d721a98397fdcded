// Whether a tensor's values are numbers (finite_values.h, for what LibTorch holds).
#pragma once

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// No NaN and no infinity; whole numbers are. Waits for a GPU, and takes memory of it there.
bool all_finite(const torch::Tensor& tensor);

}  // namespace ddprun::trainer
