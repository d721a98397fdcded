// Batch normalisation with shortcut and ReLU by the kernels of a GPU step
// (trainer/kernels/device/norm_kernel.h), as an operation that autograd knows: in eight passes over
// memory where LibTorch's separate operations take thirteen.
//
// On the CPU the same functions run as loops, one thread and much slower than batch_norm_relu()'s
// own: for tests, and to compare results.
#pragma once

#include "trainer/models/activation.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// True: batch_norm_relu() takes them from now on in all of this process, wherever they apply.
void use_device_norms(bool used);
bool uses_device_norms();

// Whether the kernels take such memory: channels-last, a multiple of 8 channels, float32, bfloat16
// or half, aligned to 16 bytes. Shortcut: undefined, or of x's shape, type and order.
bool device_norm_takes(const torch::Tensor& x, const torch::Tensor& shortcut);

// relu(batch_norm(x) + shortcut), or without the ReLU, in training mode: the module's running
// statistics take up the batch's. It has weight, bias and running statistics in float32, a
// momentum, and x more than one value for each channel. Throws KernelError.
// What only one place reads has `first` alone read.
Activation device_batch_norm(torch::nn::BatchNorm2dImpl& module, const torch::Tensor& x,
                             const torch::Tensor& shortcut, bool relu);

}  // namespace ddprun::trainer
