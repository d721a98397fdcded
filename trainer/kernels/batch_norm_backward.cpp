// The backward passes of batch_norm_kernel.h. Whether there is a ReLU, and whether its mask must be
// kept, is asked once for a run of values and not for each.
#include "trainer/kernels/batch_norm_kernel.h"
#include "trainer/kernels/batch_norm_memory.h"

namespace ddprun::trainer {
namespace {

template <typename Value>
DDPRUN_INLINE float gradient_at(const Value* gradient, const Value* y, std::int64_t i) {
  // As LibTorch's threshold_backward: where y is NaN, the gradient passes on.
  return load(y[i]) <= 0 ? 0.0F : load(gradient[i]);
}

template <typename Value>
DDPRUN_INLINE void add_gradient_sums_plane(const Value* gradient, const Value* y, const Value* x,
                                           float mean, Value* masked, std::int64_t n, double& sum,
                                           double& product) {
  for (std::int64_t begin = 0; begin < n; begin += plane_part) {
    const std::int64_t end = std::min(n, begin + plane_part);
    float s = 0;
    float p = 0;
    // clang-tidy takes these three for one: it does not look into loops under "omp".
    if (y == nullptr) {  // NOLINT(bugprone-branch-clone)
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

template <typename Value>
DDPRUN_INLINE void add_gradient_sums_row(const Value* gradient, const Value* y, const Value* x,
                                         const float* mean, Value* masked, std::int64_t columns,
                                         float* sums, float* products) {
  if (y == nullptr) {
    DDPRUN_INDEPENDENT
    for (std::int64_t i = 0; i < columns; ++i) {
      const float g = load(gradient[i]);
      sums[i] += g;
      products[i] += g * (load(x[i]) - mean[i]);
    }
  } else if (masked == nullptr) {
    DDPRUN_INDEPENDENT
    for (std::int64_t i = 0; i < columns; ++i) {
      const float g = gradient_at(gradient, y, i);
      sums[i] += g;
      products[i] += g * (load(x[i]) - mean[i]);
    }
  } else {
    DDPRUN_INDEPENDENT
    for (std::int64_t i = 0; i < columns; ++i) {
      const float g = gradient_at(gradient, y, i);
      store(masked[i], g);
      sums[i] += g;
      products[i] += g * (load(x[i]) - mean[i]);
    }
  }
}

template <typename Value, typename Number>
DDPRUN_INLINE void input_gradient_run(const Value* gradient, const Value* y, const Value* x,
                                      Number a, Number b, Number k, Value* gx, std::int64_t n) {
  if (y != nullptr) {
    DDPRUN_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) {
      store(gx[i], a[i] * gradient_at(gradient, y, i) + (b[i] * load(x[i]) + k[i]));
    }
  } else {
    DDPRUN_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) {
      store(gx[i], a[i] * load(gradient[i]) + (b[i] * load(x[i]) + k[i]));
    }
  }
}

// The loops as the loader picks them, spelled out per type.
#define DDPRUN_BATCH_NORM_BACKWARD_LOOPS(Value)                                                    \
  DDPRUN_VECTOR_CLONES void gradient_sum_plane(const Value* g, const Value* y, const Value* x,     \
                                               float mean, Value* masked, std::int64_t n,          \
                                               double& sum, double& product) {                     \
    add_gradient_sums_plane(g, y, x, mean, masked, n, sum, product);                               \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void gradient_sum_row(const Value* g, const Value* y, const Value* x,       \
                                             const float* mean, Value* masked, std::int64_t n,     \
                                             float* sums, float* products) {                       \
    add_gradient_sums_row(g, y, x, mean, masked, n, sums, products);                               \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void gradient_plane(const Value* g, const Value* y, const Value* x,         \
                                           float a, float b, float k, Value* gx, std::int64_t n) { \
    input_gradient_run(g, y, x, One{a}, One{b}, One{k}, gx, n);                                    \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void gradient_row(const Value* g, const Value* y, const Value* x,           \
                                         const float* a, const float* b, const float* k,           \
                                         Value* gx, std::int64_t n) {                              \
    input_gradient_run(g, y, x, Each{a}, Each{b}, Each{k}, gx, n);                                 \
  }
DDPRUN_BATCH_NORM_BACKWARD_LOOPS(float)
DDPRUN_BATCH_NORM_BACKWARD_LOOPS(BFloat16)
#undef DDPRUN_BATCH_NORM_BACKWARD_LOOPS

}  // namespace

template <typename Value>
void BatchNormBackward<Value>::add_gradient_sums(const BatchGeometry& geometry, OuterRange range,
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
void BatchNormBackward<Value>::input_gradient(const BatchGeometry& geometry, OuterRange range,
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

template struct BatchNormBackward<float>;
template struct BatchNormBackward<BFloat16>;

}  // namespace ddprun::trainer
