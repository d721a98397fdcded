// A convolution that keeps the size of its input, and leaves out work on padding.
//
// Of a 3x3 kernel with padding 1 on an image of 1x1 only the tap in the middle ever meets a value;
// the others multiply zeros, and their gradients are zero. The last layers of a ResNet with the
// ImageNet stem see such images when it trains on 32x32, and they hold most of its weights. There
// the convolution is one product of matrices: the same within rounding, in less than half the time.
// The gradient of the weights is computed where it is reduced (worker/torch/gradient_memory.h).
//
// Other 3x3 convolutions of stride 1 are computed by winograd_conv() where it pays; under autocast
// in bfloat16 with the float32 weights themselves instead of a rounded copy.
#pragma once

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Parameters and their names are torch::nn::Conv2d's.
class PaddedConv : public torch::nn::Conv2dImpl {
 public:
  using torch::nn::Conv2dImpl::Conv2dImpl;

  // x: (N, C, H, W). Without bias, groups and dilation, which make_conv() never sets.
  torch::Tensor forward(const torch::Tensor& x);
};

// False: every convolution of this process is LibTorch's own from now on, whatever would pay. For
// comparisons, and for whoever wants its smaller rounding errors.
void allow_winograd(bool allowed);

}  // namespace ddprun::trainer
