// Where transformed weights lie, and a block of them.
#pragma once

#include "trainer/kernels/winograd/memory.h"
#include "trainer/kernels/winograd/winograd.h"

namespace ddprun::trainer {

// What lies before a strip: all before it have 64 channels.
inline std::int64_t weights_before(const WinogradShape& shape, std::int64_t strip) {
  return strip * positions * weight_position(shape.in_channels, strip_channels);
}

// The weights between some input and some result channels as (position, from, to), positions
// `position` apart.
void transform_weight_block(const WinogradShape& shape, const WinogradWeights& weights,
                            WinogradRange from, WinogradRange to, float* target,
                            std::int64_t position);

}  // namespace ddprun::trainer
