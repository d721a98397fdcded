// Convolutions of 3 x 3 with stride 1 and padding 1 in float32 on the CPU by Winograd's algorithm
// (trainer/kernels/winograd.h), in about half the time of oneDNN's.
#pragma once

#include <torch/torch.h>

namespace ddprun::trainer {

// Whether winograd_conv() can do this, and is expected to be faster than torch::conv2d(): float32,
// x (N, C, H, W) and the weight both channels-last, channels in multiples of 16, images that fill a
// quarter of their tiles of 4 x 4 pixels or more and have 32 pixels in all, no autocast, a
// processor with AVX2. The caller knows that stride and padding are 1, without dilation, groups and
// bias.
bool winograd_pays(const torch::Tensor& x, const torch::Tensor& weight);

// torch::conv2d(x, weight, {}, 1, 1), with gradients; what winograd_pays() can do is required, or
// c10::Error is thrown, except that other orders of memory are converted and that it need not be
// fast. The result and the gradients are channels-last. Rounding errors are 0.3 to 8 times those of
// torch::conv2d(); values that are not finite reach up to three pixels further than there. The same
// input gives the same bits, for any number of threads. No gradients of gradients.
torch::Tensor winograd_conv(const torch::Tensor& x, const torch::Tensor& weight);

}  // namespace ddprun::trainer
