// relu(batch_norm(x) + shortcut) as one operation: what follows every convolution of a ResNet.
//
// On the CPU in training these steps are bound by memory, and together take up to a third of a
// ResNet's time when they are separate operations; one operation reads and writes a third less
// (trainer/kernels/batch_norm_kernel.h). Same results as the separate ones within rounding, same
// running statistics. On a GPU it is one operation where use_device_norms() says so. Wherever no
// kernels apply - evaluation, SyncBatchNorm, double precision, odd strides - the separate
// operations are what runs.
#pragma once

#include "trainer/models/activation.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {

// x: (N, C, H, W). `shortcut` has x's shape, or is undefined for none. The module's
// running statistics are updated in training mode. A module that normalises with other ranks does
// that first; shortcut and ReLU are operations of their own then.
Activation batch_norm_relu(worker::SyncBatchNorm2dImpl& module, const torch::Tensor& x,
                           const torch::Tensor& shortcut = {});

// Without the ReLU.
torch::Tensor batch_norm(worker::SyncBatchNorm2dImpl& module, const torch::Tensor& x);

}  // namespace ddprun::trainer
