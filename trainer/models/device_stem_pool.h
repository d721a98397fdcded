// stem_pool() by the kernels of a GPU step (trainer/kernels/device/pool_kernel.h). On the CPU the
// same functions run as loops, one thread: for tests, and to compare results.
#pragma once

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// True: stem_pool() takes them from now on in all of this process, wherever they apply.
void use_device_pool(bool used);
bool uses_device_pool();

// Whether the kernels take such memory: (N, C, H, W), not empty, channels-last, a multiple of 8
// channels, float32, bfloat16 or half, aligned to 16 bytes.
bool device_pool_takes(const torch::Tensor& x);

// torch::max_pool2d(x, 3, 2, 1), the gradient of each x added up in float32. Throws KernelError.
torch::Tensor device_stem_pool(const torch::Tensor& x);

}  // namespace ddprun::trainer
