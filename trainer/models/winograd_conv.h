// Convolutions of 3 x 3 with stride 1 and padding 1 on the CPU by Winograd's algorithm
// (trainer/kernels/winograd/winograd.h): in float32 in about half of oneDNN's time, in bfloat16 in
// 60 to 85 % of it.
#pragma once

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Whether winograd_conv() can do this, and is expected to be faster than torch::conv2d() of x's
// type: x (N, C, H, W) in float32 or bfloat16, the weight in float32, both channels-last, channels
// in multiples of 16, images that fill a quarter of their tiles of 4 x 4 pixels or more and have 32
// pixels in all, a processor with AVX2. In bfloat16 half of the tiles, and 32 channels. The caller
// knows that stride and padding are 1, without dilation, groups and bias, and what autocast would
// make of x: neither function asks.
// Also not bfloat16 where the processor has AMX.
bool winograd_pays(const torch::Tensor& x, const torch::Tensor& weight);

// Whether the processor has AMX: by that oneDNN multiplies bfloat16 several times faster than
// anything multiplies float32.
bool has_bfloat16_tiles();

// torch::conv2d(x, weight, {}, 1, 1), with gradients; what winograd_pays() can do is required, or
// c10::Error is thrown, except that other orders of memory are converted and that it need not be
// fast. The result and the gradients are channels-last. Rounding errors are 0.3 to 8 times those of
// torch::conv2d() in float32. With a bfloat16 x all is computed in float32 as well; the result and
// x's gradient are bfloat16, rounded once, the weight's gradient is float32. Values that are not
// finite reach up to three pixels further than in torch::conv2d(). The same input gives the same
// bits, for any number of threads. No gradients of gradients.
torch::Tensor winograd_conv(const torch::Tensor& x, const torch::Tensor& weight);

}  // namespace ddprun::trainer
