// Limits the length of the gradient, as torch.nn.utils.clip_grad_norm_.
#pragma once

#include <vector>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Scales all gradients by min(1, norm_max / (norm + 1e-6)), where norm is the 2-norm of all of
// them together, and returns it: a scalar on their device, which the host does not wait for on
// CUDA. Parameters without a gradient are left out; with no gradient at all it is 0. A norm that
// is not a number makes all gradients not a number, so that the loss shows it.
torch::Tensor clip_gradients(const std::vector<torch::Tensor>& parameters, double norm_max);

}  // namespace ddprun::trainer
