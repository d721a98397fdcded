// See batch_norm_kernel.h. Two shapes of loops: along a plane, where all values are of one channel,
// and along a row of channels (channels-last, and planes too small for the first).
#include "trainer/kernels/batch_norm_kernel.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ddprun::trainer {
namespace {

constexpr std::int64_t inner_min_by_plane = 32;
constexpr std::int64_t rows_per_float_sum = 256;  // Then on in double.
constexpr std::int64_t plane_part = 4096;         // The same along a plane.

// The number of a channel, for a whole plane or for each element of a row.
struct One {
  float value;
  DDPRUN_INLINE float operator[](std::int64_t) const { return value; }
};
struct Each {
  const float* values;
  DDPRUN_INLINE float operator[](std::int64_t i) const { return values[i]; }
};

template <typename Value, typename Number>
DDPRUN_INLINE void normalize_run(const Value* x, Number scale, Number shift, const Value* shortcut,
                                 bool relu, Value* y, std::int64_t n) {
  const auto run = [&](auto value) {
    if (relu) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) {
        const float v = value(i);
        store(y[i], v < 0 ? 0.0F : v);
      }
    } else {
#pragma GCC ivdep
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

template <typename Value>
DDPRUN_INLINE float gradient_at(const Value* gradient, const Value* y, std::int64_t i) {
  return load(y[i]) <= 0 ? 0.0F : load(gradient[i]);
}

template <typename Value, typename Number>
DDPRUN_INLINE void input_gradient_run(const Value* gradient, const Value* y, const Value* x,
                                      Number a, Number b, Number k, Value* gx, std::int64_t n) {
  if (y != nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      store(gx[i], a[i] * gradient_at(gradient, y, i) + (b[i] * load(x[i]) + k[i]));
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      store(gx[i], a[i] * load(gradient[i]) + (b[i] * load(x[i]) + k[i]));
    }
  }
}

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

template <typename Value>
DDPRUN_INLINE void add_gradient_sums_plane(const Value* gradient, const Value* y, const Value* x,
                                           float mean, Value* masked, std::int64_t n, double& sum,
                                           double& product) {
  for (std::int64_t begin = 0; begin < n; begin += plane_part) {
    const std::int64_t end = std::min(n, begin + plane_part);
    float s = 0;
    float p = 0;
    if (y == nullptr) {
#pragma omp simd reduction(+ : s, p)
      for (std::int64_t i = begin; i < end; ++i) {
        const float g = load(gradient[i]);
        s += g;
        p += g * (load(x[i]) - mean);
      }
    } else if (masked == nullptr) {
#pragma omp simd reduction(+ : s, p)
      for (std::int64_t i = begin; i < end; ++i) {
        const float g = gradient_at(gradient, y, i);
        s += g;
        p += g * (load(x[i]) - mean);
      }
    } else {
#pragma omp simd reduction(+ : s, p)
      for (std::int64_t i = begin; i < end; ++i) {
        const float g = gradient_at(gradient, y, i);
        store(masked[i], g);
        s += g;
        p += g * (load(x[i]) - mean);
      }
    }
    sum += s;
    product += p;
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
#pragma GCC ivdep
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
#pragma GCC ivdep
    for (std::int64_t i = 0; i < columns; ++i) {
      const float d = load(x0[i]) - center[i];
      sums[i] += d;
      squares[i] += d * d;
    }
  }
}

template <typename Value>
DDPRUN_INLINE void add_gradient_sums_row(const Value* gradient, const Value* y, const Value* x,
                                         const float* mean, Value* masked, std::int64_t columns,
                                         float* sums, float* products) {
  if (y == nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < columns; ++i) {
      const float g = load(gradient[i]);
      sums[i] += g;
      products[i] += g * (load(x[i]) - mean[i]);
    }
  } else if (masked == nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < columns; ++i) {
      const float g = gradient_at(gradient, y, i);
      sums[i] += g;
      products[i] += g * (load(x[i]) - mean[i]);
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < columns; ++i) {
      const float g = gradient_at(gradient, y, i);
      store(masked[i], g);
      sums[i] += g;
      products[i] += g * (load(x[i]) - mean[i]);
    }
  }
}

// The loops as the loader picks them, spelled out per type.
#define DDPRUN_BATCH_NORM_LOOPS(Value)                                                             \
  DDPRUN_VECTOR_CLONES void normalize_plane(const Value* x, float scale, float shift,              \
                                            const Value* shortcut, bool relu, Value* y,            \
                                            std::int64_t n) {                                      \
    normalize_run(x, One{scale}, One{shift}, shortcut, relu, y, n);                                \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void normalize_row(const Value* x, const float* scale, const float* shift,  \
                                          const Value* shortcut, bool relu, Value* y,              \
                                          std::int64_t n) {                                        \
    normalize_run(x, Each{scale}, Each{shift}, shortcut, relu, y, n);                              \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void gradient_plane(const Value* g, const Value* y, const Value* x,         \
                                           float a, float b, float k, Value* gx, std::int64_t n) { \
    input_gradient_run(g, y, x, One{a}, One{b}, One{k}, gx, n);                                    \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void gradient_row(const Value* g, const Value* y, const Value* x,           \
                                         const float* a, const float* b, const float* k,           \
                                         Value* gx, std::int64_t n) {                              \
    input_gradient_run(g, y, x, Each{a}, Each{b}, Each{k}, gx, n);                                 \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void sum_plane(const Value* x, float center, std::int64_t n, double& sum,   \
                                      double& square) {                                            \
    add_sums_plane(x, center, n, sum, square);                                                     \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void sum_rows(const Value* x, std::int64_t rows, std::int64_t columns,      \
                                     const float* center, float* sums, float* squares) {           \
    add_sums_rows(x, rows, columns, center, sums, squares);                                        \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void gradient_sum_plane(const Value* g, const Value* y, const Value* x,     \
                                               float mean, Value* masked, std::int64_t n,          \
                                               double& sum, double& product) {                     \
    add_gradient_sums_plane(g, y, x, mean, masked, n, sum, product);                               \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void gradient_sum_row(const Value* g, const Value* y, const Value* x,       \
                                             const float* mean, Value* masked, std::int64_t n,     \
                                             float* sums, float* products) {                       \
    add_gradient_sums_row(g, y, x, mean, masked, n, sums, products);                               \
  }
DDPRUN_BATCH_NORM_LOOPS(float)
DDPRUN_BATCH_NORM_LOOPS(BFloat16)
#undef DDPRUN_BATCH_NORM_LOOPS

bool by_plane(const BatchGeometry& geometry) { return geometry.inner >= inner_min_by_plane; }

// Calls work(channel, offset) for every plane of the range.
template <typename Work>
void for_each_plane(const BatchGeometry& geometry, OuterRange range, Work work) {
  for (std::int64_t n = range.begin; n < range.end; ++n) {
    for (std::int64_t c = 0; c < geometry.channels; ++c) {
      work(static_cast<std::size_t>(c), (n * geometry.channels + c) * geometry.inner);
    }
  }
}

// A number per channel as one per element of a row.
class RowNumbers {
 public:
  RowNumbers(const BatchGeometry& geometry, const float* by_channel) : values_(by_channel) {
    if (geometry.inner == 1) return;
    expanded_.reserve(static_cast<std::size_t>(geometry.channels * geometry.inner));
    for (std::int64_t c = 0; c < geometry.channels; ++c) {
      expanded_.insert(expanded_.end(), static_cast<std::size_t>(geometry.inner), by_channel[c]);
    }
    values_ = expanded_.data();
  }
  const float* data() const { return values_; }

 private:
  const float* values_;
  std::vector<float> expanded_;
};

// Two float sums per element of a row, handed on to doubles per channel now and then.
class RowSums {
 public:
  explicit RowSums(const BatchGeometry& geometry)
      : geometry_(geometry),
        first(static_cast<std::size_t>(geometry.channels * geometry.inner)),
        second(first.size()) {}

  void hand_on(double* first_by_channel, double* second_by_channel) {
    std::size_t i = 0;
    for (std::int64_t c = 0; c < geometry_.channels; ++c) {
      for (std::int64_t j = 0; j < geometry_.inner; ++j, ++i) {
        first_by_channel[c] += first[i];
        second_by_channel[c] += second[i];
      }
    }
    std::fill(first.begin(), first.end(), 0.0F);
    std::fill(second.begin(), second.end(), 0.0F);
  }

 private:
  const BatchGeometry& geometry_;

 public:
  std::vector<float> first;
  std::vector<float> second;
};

}  // namespace

template <typename Value>
void BatchNormKernels<Value>::add_sums(const BatchGeometry& geometry, OuterRange range,
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
void BatchNormKernels<Value>::normalize(const BatchGeometry& geometry, OuterRange range,
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

template <typename Value>
void BatchNormKernels<Value>::add_gradient_sums(const BatchGeometry& geometry, OuterRange range,
                                                const Value* gradient, const Value* y,
                                                const Value* x, const float* mean, Value* masked,
                                                double* sums, double* products) {
  const auto output = [&](std::int64_t at) { return y == nullptr ? nullptr : y + at; };
  const auto written = [&](std::int64_t at) { return masked == nullptr ? nullptr : masked + at; };
  if (by_plane(geometry)) {
    return for_each_plane(geometry, range, [&](std::size_t c, std::int64_t at) {
      gradient_sum_plane(gradient + at, output(at), x + at, mean[c], written(at), geometry.inner,
                         sums[c], products[c]);
    });
  }
  const std::int64_t columns = geometry.channels * geometry.inner;
  const RowNumbers means(geometry, mean);
  RowSums row_sums(geometry);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const std::int64_t at = row * columns;
    gradient_sum_row(gradient + at, output(at), x + at, means.data(), written(at), columns,
                     row_sums.first.data(), row_sums.second.data());
    if ((row - range.begin) % rows_per_float_sum == rows_per_float_sum - 1) {
      row_sums.hand_on(sums, products);
    }
  }
  row_sums.hand_on(sums, products);
}

template <typename Value>
void BatchNormKernels<Value>::input_gradient(const BatchGeometry& geometry, OuterRange range,
                                             const Value* gradient, const Value* y, const Value* x,
                                             const float* a, const float* b, const float* k,
                                             Value* gx) {
  const auto output = [&](std::int64_t at) { return y == nullptr ? nullptr : y + at; };
  if (by_plane(geometry)) {
    return for_each_plane(geometry, range, [&](std::size_t c, std::int64_t at) {
      gradient_plane(gradient + at, output(at), x + at, a[c], b[c], k[c], gx + at, geometry.inner);
    });
  }
  const std::int64_t columns = geometry.channels * geometry.inner;
  const RowNumbers as(geometry, a);
  const RowNumbers bs(geometry, b);
  const RowNumbers ks(geometry, k);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const std::int64_t at = row * columns;
    gradient_row(gradient + at, output(at), x + at, as.data(), bs.data(), ks.data(), gx + at,
                 columns);
  }
}

template struct BatchNormKernels<float>;
template struct BatchNormKernels<BFloat16>;

}  // namespace ddprun::trainer
