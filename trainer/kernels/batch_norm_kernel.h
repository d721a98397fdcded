// Batch normalisation with ReLU and an added shortcut, forward and backward, in four passes over
// memory where separate operations take nine. On raw memory: no tensors, no threads.
//
//   y  = relu(scale[c] * x + shift[c] + shortcut)      scale = weight / deviation
//   g  = gradient of y where y > 0, else 0             what the shortcut gets
//   gx = a[c] * g + b[c] * x + k[c]                    gradient of x
//
// The formulas are those of Ioffe and Szegedy (2015, arXiv 1502.03167), section 3.
//
// Memory. `outer` x `channels` x `inner`, densely: (N, C, H, W) is N x C x HW; channels-last,
// (N, H, W, C) in memory, is NHW x C x 1. A pass works on a range of `outer`, so that callers may
// share the work out; sums come as one number per channel and range, to be added up by the caller.
#pragma once

#include <cstdint>

#include "trainer/kernels/vector_clones.h"

namespace ddprun::trainer {

struct BatchGeometry {
  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 0;
};

struct OuterRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Value: float or BFloat16. All pointers are to whole tensors or to one number per channel; `y`,
// `shortcut` and `masked` may be null.
template <typename Value>
struct BatchNormForward {
  // Adds to `sums` the sum of x - center, to `squares` that of its square. A center near the mean
  // keeps the variance exact when the mean is large beside the deviation.
  static void add_sums(const BatchGeometry& geometry, OuterRange range, const Value* x,
                       const float* center, double* sums, double* squares);

  // With `relu`, negative results become 0; NaN stays NaN.
  static void normalize(const BatchGeometry& geometry, OuterRange range, const Value* x,
                        const float* scale, const float* shift, const Value* shortcut, bool relu,
                        Value* y);
};

template <typename Value>
struct BatchNormBackward {
  // Adds to `sums` the sum of g, to `products` that of g * (x - mean). Where y is given, g is the
  // gradient where y > 0 and else 0, and is written to `masked`.
  static void add_gradient_sums(const BatchGeometry& geometry, OuterRange range,
                                const Value* gradient, const Value* y, const Value* x,
                                const float* mean, Value* masked, double* sums, double* products);

  // Writes gx. `y` as above; `gx` may be `gradient`.
  static void input_gradient(const BatchGeometry& geometry, OuterRange range, const Value* gradient,
                             const Value* y, const Value* x, const float* a, const float* b,
                             const float* k, Value* gx);
};

}  // namespace ddprun::trainer
