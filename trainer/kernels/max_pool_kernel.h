// The max-pooling of a ResNet's stem, 3 x 3 with stride 2 and padding 1, vectorised, with one byte
// per result for backward instead of eight. On raw memory: no tensors, no threads.
#pragma once

#include <cstdint>

#include "trainer/kernels/vector_clones.h"

namespace ddprun::trainer {

// Of one image's plane (channels-last: of its channels together).
struct PoolGeometry {
  std::int64_t channels = 0;
  std::int64_t height = 0;  // At least 1, as is the width.
  std::int64_t width = 0;

  std::int64_t pooled_height() const { return (height - 1) / 2 + 1; }
  std::int64_t pooled_width() const { return (width - 1) / 2 + 1; }
};

// The first of equal values wins, NaN over all (the last one), as in torch.nn.MaxPool2d. `taps`:
// for each result, 3 * row + column of the window where its value came from.
template <typename Value>
struct MaxPoolKernels {
  // One image; (C, H, W) or, channels-last, (H, W, C).
  static void forward(const PoolGeometry& geometry, bool channels_last, const Value* x, Value* y,
                      std::uint8_t* taps);

  // Overwrites gx.
  static void backward(const PoolGeometry& geometry, bool channels_last, const Value* gradient,
                       const std::uint8_t* taps, Value* gx);
};

}  // namespace ddprun::trainer
