// relu(batch_norm(x) + shortcut) as one operation: what follows every convolution of a ResNet.
//
// On the CPU in training these steps are bound by memory, and together take up to a third of a
// ResNet's time when they are separate operations; one operation reads and writes a third less
// (trainer/kernels/batch_norm_kernel.h). Same results as the separate ones within rounding, same
// running statistics. Wherever the kernels do not apply - CUDA, evaluation, double or half
// precision, odd strides - the separate operations are what runs.
#pragma once

#include <torch/torch.h>

namespace ddprun::trainer {

// x: (N, C, H, W). `shortcut` has x's shape, or is undefined for none. `module` must be a plain
// BatchNorm2d; its running statistics are updated in training mode.
torch::Tensor batch_norm_relu(torch::nn::BatchNorm2dImpl& module, const torch::Tensor& x,
                              const torch::Tensor& shortcut = {});

// Without the ReLU.
torch::Tensor batch_norm(torch::nn::BatchNorm2dImpl& module, const torch::Tensor& x);

}  // namespace ddprun::trainer
