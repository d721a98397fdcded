// The max-pooling after a ResNet's first convolution: 3 x 3, stride 2, padding 1.
#pragma once

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// x: (N, C, H, W). The same values and gradients as torch::max_pool2d(x, 3, 2, 1), which is what
// runs where neither the CPU kernel (trainer/kernels/max_pool_kernel.h) nor, where that is asked
// for, a GPU step's (trainer/models/device_stem_pool.h) applies.
torch::Tensor stem_pool(const torch::Tensor& x);

}  // namespace ddprun::trainer
