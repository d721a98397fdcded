// The forward passes of batch_norm_kernel.h. Sums are taken in float for a short run only, and then
// go to double: that keeps vectors of floats, and the error of a long sum small.
#include <algorithm>

#include "trainer/kernels/batch_norm_kernel.h"
#include "trainer/kernels/batch_norm_memory.h"

namespace ddprun::trainer {
namespace {

template <typename Value>
DDPRUN_INLINE void add_sums_plane(const Value* x, float center, std::int64_t n, double& sum,
                                  double& square) {
  for (std::int64_t begin = 0; begin < n; begin += plane_part) {
    const std::int64_t end = std::min(n, begin + plane_part);
    float s = 0;
    float q = 0;
#pragma omp simd reduction(+ : s, q)
    for (std::int64_t i = begin; i < end; ++i) {
      const float d = load(x[i]) - center;
      s += d;
      q += d * d;
    }
    sum += s;
    square += q;
  }
}

// Four rows at a time, so that the sums are loaded and stored once for four values.
template <typename Value>
DDPRUN_INLINE void add_sums_rows(const Value* x, std::int64_t rows, std::int64_t columns,
                                 const float* center, float* sums, float* squares) {
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const Value* x0 = x + row * columns;
    const Value* x1 = x0 + columns;
    const Value* x2 = x1 + columns;
    const Value* x3 = x2 + columns;
    DDPRUN_INDEPENDENT
    for (std::int64_t i = 0; i < columns; ++i) {
      const float d0 = load(x0[i]) - center[i];
      const float d1 = load(x1[i]) - center[i];
      const float d2 = load(x2[i]) - center[i];
      const float d3 = load(x3[i]) - center[i];
      sums[i] += (d0 + d1) + (d2 + d3);
      squares[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  for (; row < rows; ++row) {
    const Value* x0 = x + row * columns;
    DDPRUN_INDEPENDENT
    for (std::int64_t i = 0; i < columns; ++i) {
      const float d = load(x0[i]) - center[i];
      sums[i] += d;
      squares[i] += d * d;
    }
  }
}

template <typename Value, typename Number>
DDPRUN_INLINE void normalize_run(const Value* x, Number scale, Number shift, const Value* shortcut,
                                 bool relu, Value* y, std::int64_t n) {
  const auto run = [&](auto value) {
    if (relu) {
      DDPRUN_INDEPENDENT
      for (std::int64_t i = 0; i < n; ++i) {
        const float v = value(i);
        // Not max(0, v): NaN must stay, or nobody would see that the network diverged.
        store(y[i], v < 0 ? 0.0F : v);
      }
    } else {
      DDPRUN_INDEPENDENT
      for (std::int64_t i = 0; i < n; ++i) store(y[i], value(i));
    }
  };
  if (shortcut != nullptr) {
    run([&](std::int64_t i) __attribute__((always_inline)) {
      return load(x[i]) * scale[i] + shift[i] + load(shortcut[i]);
    });
  } else {
    run([&](std::int64_t i)
            __attribute__((always_inline)) { return load(x[i]) * scale[i] + shift[i]; });
  }
}

// The loops as the loader picks them, spelled out per type.
#define DDPRUN_BATCH_NORM_FORWARD_LOOPS(Value)                                                    \
  DDPRUN_VECTOR_CLONES void sum_plane(const Value* x, float center, std::int64_t n, double& sum,  \
                                      double& square) {                                           \
    add_sums_plane(x, center, n, sum, square);                                                    \
  }                                                                                               \
  DDPRUN_VECTOR_CLONES void sum_rows(const Value* x, std::int64_t rows, std::int64_t columns,     \
                                     const float* center, float* sums, float* squares) {          \
    add_sums_rows(x, rows, columns, center, sums, squares);                                       \
  }                                                                                               \
  DDPRUN_VECTOR_CLONES void normalize_plane(const Value* x, float scale, float shift,             \
                                            const Value* shortcut, bool relu, Value* y,           \
                                            std::int64_t n) {                                     \
    normalize_run(x, One{scale}, One{shift}, shortcut, relu, y, n);                               \
  }                                                                                               \
  DDPRUN_VECTOR_CLONES void normalize_row(const Value* x, const float* scale, const float* shift, \
                                          const Value* shortcut, bool relu, Value* y,             \
                                          std::int64_t n) {                                       \
    normalize_run(x, Each{scale}, Each{shift}, shortcut, relu, y, n);                             \
  }
DDPRUN_BATCH_NORM_FORWARD_LOOPS(float)
DDPRUN_BATCH_NORM_FORWARD_LOOPS(BFloat16)
#undef DDPRUN_BATCH_NORM_FORWARD_LOOPS

}  // namespace

template <typename Value>
void BatchNormForward<Value>::add_sums(const BatchGeometry& geometry, OuterRange range,
                                       const Value* x, const float* center, double* sums,
                                       double* squares) {
  if (by_plane(geometry)) {
    return for_each_plane(geometry, range, [&](std::size_t c, std::int64_t at) {
      sum_plane(x + at, center[c], geometry.inner, sums[c], squares[c]);
    });
  }
  const std::int64_t columns = geometry.channels * geometry.inner;
  const RowNumbers centers(geometry, center);
  RowSums row_sums(geometry);
  for (std::int64_t row = range.begin; row < range.end; row += rows_per_float_sum) {
    sum_rows(x + row * columns, std::min(rows_per_float_sum, range.end - row), columns,
             centers.data(), row_sums.first.data(), row_sums.second.data());
    row_sums.hand_on(sums, squares);
  }
}

template <typename Value>
void BatchNormForward<Value>::normalize(const BatchGeometry& geometry, OuterRange range,
                                        const Value* x, const float* scale, const float* shift,
                                        const Value* shortcut, bool relu, Value* y) {
  const auto added = [&](std::int64_t at) { return shortcut == nullptr ? nullptr : shortcut + at; };
  if (by_plane(geometry)) {
    return for_each_plane(geometry, range, [&](std::size_t c, std::int64_t at) {
      normalize_plane(x + at, scale[c], shift[c], added(at), relu, y + at, geometry.inner);
    });
  }
  const std::int64_t columns = geometry.channels * geometry.inner;
  const RowNumbers scales(geometry, scale);
  const RowNumbers shifts(geometry, shift);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const std::int64_t at = row * columns;
    normalize_row(x + at, scales.data(), shifts.data(), added(at), relu, y + at, columns);
  }
}

template struct BatchNormForward<float>;
template struct BatchNormForward<BFloat16>;

}  // namespace ddprun::trainer
