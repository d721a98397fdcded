// How the passes of batch_norm_kernel.h go through memory. Two shapes of loops: along a plane,
// where all values are of one channel, and along a row of channels (channels-last, and planes too
// small for the first).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/kernels/batch_norm_kernel.h"

namespace ddprun::trainer {

inline constexpr std::int64_t inner_min_by_plane = 32;
inline constexpr std::int64_t rows_per_float_sum = 256;  // Then on in double.

// The same along a plane: 256 for each of the lanes of a vector, or for the one sum that there
// may be where nothing says that the loop becomes one of vectors.
#if defined(DDPRUN_HAS_VECTOR_CLONES)
inline constexpr std::int64_t plane_part = 16 * rows_per_float_sum;
#else
inline constexpr std::int64_t plane_part = rows_per_float_sum;
#endif

// The number of a channel, for a whole plane or for each element of a row.
struct One {
  float value;
  DDPRUN_INLINE float operator[](std::int64_t) const { return value; }
};
struct Each {
  const float* values;
  DDPRUN_INLINE float operator[](std::int64_t i) const { return values[i]; }
};

inline bool by_plane(const BatchGeometry& geometry) { return geometry.inner >= inner_min_by_plane; }

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
      : first(static_cast<std::size_t>(geometry.channels * geometry.inner)),
        second(first.size()),
        geometry_(geometry) {}

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

  std::vector<float> first;
  std::vector<float> second;

 private:
  const BatchGeometry& geometry_;
};

}  // namespace ddprun::trainer
