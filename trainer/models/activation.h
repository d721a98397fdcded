// What a layer gives to two places of the next block: its convolutions, and its shortcut.
#pragma once

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The same values, (N, C, H, W). Where a kernel adds the gradients of both in a pass that it makes
// anyway they are two tensors over one memory; else one tensor, of which autograd adds them in a
// pass of its own. Each place has to read its own for that.
struct Activation {
  torch::Tensor first;
  torch::Tensor second;
};

}  // namespace ddprun::trainer
