// The weights' transform of winograd.h.
#include "trainer/kernels/winograd/weights.h"

#include <utility>

#include "trainer/kernels/winograd/memory.h"

namespace ddprun::trainer {
namespace {

constexpr int taps = 9;

// a = the rows' elements whose index lacks the bit `distance`, b = the others; one step of four
// that swap the rows and columns of a square of 16 x 16.
template <int distance, int... index>
DDPRUN_INLINE void swap_halves(Vector& a, Vector& b, std::integer_sequence<int, index...>) {
  const Vector first = __builtin_shufflevector(
      a, b, ((index & distance) != 0 ? lanes + index - distance : index)...);
  b = __builtin_shufflevector(a, b,
                              ((index & distance) != 0 ? lanes + index : index + distance)...);
  a = first;
}

template <int distance>
DDPRUN_INLINE void swap_step(Vector* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) {
    if ((i & distance) != 0) continue;
    swap_halves<distance>(rows[i], rows[i + distance], std::make_integer_sequence<int, lanes>());
  }
}

// Rows `step` apart become columns. Has the next square loaded into the cache.
DDPRUN_INLINE void transpose_square(const float* source, const float* next, std::int64_t step,
                                    float* target, std::int64_t target_step) {
  Vector rows[lanes];
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) {
    __builtin_prefetch(next + i * step);
    rows[i] = vector_at(source + i * step);
  }
  swap_step<1>(rows);
  swap_step<2>(rows);
  swap_step<4>(rows);
  swap_step<8>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) vector_at(target + i * target_step) = rows[i];
}

// Taps of sixteen result channels for one input channel, `step` apart.
DDPRUN_INLINE void transform_taps(const float* source, std::int64_t step, bool rotated,
                                  float* target, std::int64_t position) {
  const float* first = rotated ? source + (taps - 1) * step : source;
  const std::int64_t forward = rotated ? -step : step;
  transform_square<WeightLine>(
      [&](int row, int column)
          __attribute__((always_inline)) { return first + (row * 3 + column) * forward; },
      [&](int row, int column)
          __attribute__((always_inline)) { return target + (row * 6 + column) * position; });
}

// Of weights that are (from, 3, 3, to) in memory.
DDPRUN_INLINE void transform_reversed(const WinogradShape& shape, const float* weight,
                                      WinogradRange from, WinogradRange to, float* target,
                                      std::int64_t position) {
  const std::int64_t row = taps * shape.out_channels;
  for (std::int64_t i = from.begin; i < from.end; ++i) {
    const std::int64_t ahead = i + 1 < from.end ? row : 0;
    for (std::int64_t c = to.begin; c < to.end; c += lanes) {
      const float* source = weight + i * row + c;
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        __builtin_prefetch(source + ahead + tap * shape.out_channels);
      }
      transform_taps(source, shape.out_channels, true, target, position);
      target += lanes;
    }
  }
}

// Of weights that are (to, 3, 3, from) in memory.
DDPRUN_INLINE void transform_forward(const WinogradShape& shape, const float* weight,
                                     WinogradRange from, WinogradRange to, float* target,
                                     std::int64_t position) {
  const std::int64_t row = taps * shape.in_channels;
  float turned[lanes * taps * lanes];  // (from, 3, 3, to)
  for (std::int64_t c = to.begin; c < to.end; c += lanes) {
    const float* source = weight + c * row + from.begin;
    const float* next_line = c + lanes < to.end ? source + lanes * row : source;
    for (std::int64_t i = 0; i < from.size(); i += lanes, source += lanes) {
      const float* next = i + lanes < from.size() ? source + lanes : next_line;
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const std::int64_t offset = tap * shape.in_channels;
        transpose_square(source + offset, next + offset, row, turned + tap * lanes, taps * lanes);
      }
      for (std::int64_t j = 0; j < lanes; ++j) {
        transform_taps(turned + j * taps * lanes, lanes, false,
                       target + (i + j) * to.size() + (c - to.begin), position);
      }
    }
  }
}

}  // namespace

DDPRUN_VECTOR_CLONES
void transform_weight_block(const WinogradShape& shape, const WinogradWeights& weights,
                            WinogradRange from, WinogradRange to, float* target,
                            std::int64_t position) {
  if (weights.reversed) {
    transform_reversed(shape, weights.weight, from, to, target, position);
  } else {
    transform_forward(shape, weights.weight, from, to, target, position);
  }
}

std::int64_t winograd_weights_size(const WinogradShape& shape) {
  std::int64_t size = 0;
  for (std::int64_t i = 0; i < winograd_strips(shape.out_channels); ++i) {
    size += positions * weight_position(shape.in_channels, Strip(i, shape.out_channels).width);
  }
  return size;
}

void winograd_transform_weights(const WinogradShape& shape, WinogradRange strips,
                                const WinogradWeights& weights, float* transformed) {
  for (std::int64_t i = strips.begin; i < strips.end; ++i) {
    const Strip strip(i, shape.out_channels);
    transform_weight_block(
        shape, weights, {0, shape.in_channels}, {strip.begin, strip.begin + strip.width},
        transformed + weights_before(shape, i), weight_position(shape.in_channels, strip.width));
  }
}

}  // namespace ddprun::trainer
