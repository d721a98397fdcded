// Vector loops over whole rows; where they need a border, it is of values that never win.
#include "trainer/kernels/max_pool_kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace ddprun::trainer {
namespace {

constexpr std::int64_t window = 3;
constexpr std::int64_t stride = 2;
constexpr float lowest = -std::numeric_limits<float>::infinity();

// The largest values so far of a row of results, and the taps that they came from.
struct Best {
  explicit Best(std::int64_t size)
      : values(static_cast<std::size_t>(size)), taps(static_cast<std::size_t>(size)) {}
  std::vector<float> values;
  std::vector<std::int32_t> taps;
};

template <typename Value>
DDPRUN_INLINE void take_up(const Value* x, std::int64_t n, std::int32_t tap, float* best,
                           std::int32_t* taps) {
  DDPRUN_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = load(x[i]);
    const bool larger = (v > best[i]) | (v != v);  // NaN is taken up, and stays.
    best[i] = larger ? v : best[i];
    taps[i] = larger ? tap : taps[i];
  }
}

#define DDPRUN_MAX_POOL_LOOPS(Value)                                                               \
  DDPRUN_VECTOR_CLONES void take_up_row(const Value* x, std::int64_t n, std::int32_t tap,          \
                                        float* best, std::int32_t* taps) {                         \
    take_up(x, n, tap, best, taps);                                                                \
  }                                                                                                \
  DDPRUN_VECTOR_CLONES void store_row(const float* best, const std::int32_t* from, std::int64_t n, \
                                      Value* y, std::uint8_t* taps) {                              \
    for (std::int64_t i = 0; i < n; ++i) {                                                         \
      store(y[i], best[i]);                                                                        \
      taps[i] = static_cast<std::uint8_t>(from[i]);                                                \
    }                                                                                              \
  }
DDPRUN_MAX_POOL_LOOPS(float)
DDPRUN_MAX_POOL_LOOPS(BFloat16)
#undef DDPRUN_MAX_POOL_LOOPS

// The first row or column of a window that starts at `at`, one before the image at most.
std::int64_t first_inside(std::int64_t at) { return at < 0 ? -at : 0; }
std::int64_t end_inside(std::int64_t at, std::int64_t size) { return std::min(window, size - at); }

// A plane with a border of values that never win, its rows and columns split into even and odd
// ones: so a tap of all windows of the plane is one run of memory, however small the plane is.
//
//   padded rows 0 1 2 3 4 -> even: 0 2 4, odd: 1 3; tap i of window `out` is row out + i / 2 of
//   the even (i = 0, 2) or the odd (i = 1) ones. The same for columns.
class SplitPlane {
 public:
  explicit SplitPlane(const PoolGeometry& geometry)
      : height_(geometry.height),
        width_(geometry.width),
        pitch_(geometry.pooled_width() + 1),
        quarter_((geometry.pooled_height() + 1) * pitch_),
        values_(static_cast<std::size_t>(4 * quarter_), lowest) {}

  std::int64_t pitch() const { return pitch_; }

  template <typename Value>
  void fill(const Value* x) {
    for (std::int64_t i = 0; i < height_; ++i, x += width_) {
      // Row i is padded row i + 1, column j is padded column j + 1.
      float* odd = row(i + 1, 1);
      float* even = row(i + 1, 0) + 1;
      const std::int64_t pairs = width_ / 2;
      for (std::int64_t j = 0; j < pairs; ++j) {
        odd[j] = load(x[2 * j]);
        even[j] = load(x[2 * j + 1]);
      }
      if (width_ % 2 == 1) odd[pairs] = load(x[width_ - 1]);
    }
  }

  // Tap (i, j) of the first window; that of window (out, column) is out * pitch() + column on.
  const float* tap(std::int64_t i, std::int64_t j) { return row(i, j % 2) + j / 2; }

 private:
  float* row(std::int64_t padded_row, std::int64_t column_parity) {
    return values_.data() + (2 * (padded_row % 2) + column_parity) * quarter_ +
           padded_row / 2 * pitch_;
  }

  std::int64_t height_;
  std::int64_t width_;
  std::int64_t pitch_;
  std::int64_t quarter_;
  std::vector<float> values_;
};

template <typename Value>
void forward_plane(const PoolGeometry& geometry, SplitPlane& split, Best& best, const Value* x,
                   Value* y, std::uint8_t* taps) {
  const std::int64_t columns = geometry.pooled_width();
  const std::int64_t rows = geometry.pooled_height();
  const std::int64_t run = rows * split.pitch() - 1;
  split.fill(x);
  std::fill(best.values.begin(), best.values.end(), lowest);
  for (std::int64_t i = 0; i < rows * split.pitch(); ++i) {  // The first tap inside the plane.
    const std::int64_t tap = (i < split.pitch() ? window : 0) + (i % split.pitch() == 0 ? 1 : 0);
    best.taps[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(tap);  // 0, 1, 3 or 4.
  }
  for (std::int64_t i = 0; i < window; ++i) {
    for (std::int64_t j = 0; j < window; ++j) {
      take_up_row(split.tap(i, j), run, static_cast<std::int32_t>(window * i + j),
                  best.values.data(), best.taps.data());
    }
  }
  for (std::int64_t out = 0; out < rows; ++out) {
    store_row(best.values.data() + out * split.pitch(), best.taps.data() + out * split.pitch(),
              columns, y + out * columns, taps + out * columns);
  }
}

template <typename Value>
void forward_channels_last(const PoolGeometry& geometry, const Value* x, Value* y,
                           std::uint8_t* taps) {
  const std::int64_t channels = geometry.channels;
  Best best(channels);
  for (std::int64_t out = 0; out < geometry.pooled_height() * geometry.pooled_width(); ++out) {
    const std::int64_t top = stride * (out / geometry.pooled_width()) - 1;
    const std::int64_t left = stride * (out % geometry.pooled_width()) - 1;
    const auto first = static_cast<std::int32_t>(window * first_inside(top) + first_inside(left));
    std::fill(best.values.begin(), best.values.end(), lowest);
    std::fill(best.taps.begin(), best.taps.end(), first);
    for (std::int64_t i = first_inside(top); i < end_inside(top, geometry.height); ++i) {
      for (std::int64_t j = first_inside(left); j < end_inside(left, geometry.width); ++j) {
        take_up_row(x + ((top + i) * geometry.width + left + j) * channels, channels,
                    static_cast<std::int32_t>(window * i + j), best.values.data(),
                    best.taps.data());
      }
    }
    store_row(best.values.data(), best.taps.data(), channels, y + out * channels,
              taps + out * channels);
  }
}

}  // namespace

template <typename Value>
void MaxPoolKernels<Value>::forward(const PoolGeometry& geometry, bool channels_last,
                                    const Value* x, Value* y, std::uint8_t* taps) {
  if (channels_last) return forward_channels_last(geometry, x, y, taps);
  const std::int64_t plane = geometry.height * geometry.width;
  const std::int64_t pooled = geometry.pooled_height() * geometry.pooled_width();
  SplitPlane split(geometry);
  Best best(geometry.pooled_height() * split.pitch());
  for (std::int64_t c = 0; c < geometry.channels; ++c) {
    forward_plane(geometry, split, best, x + c * plane, y + c * pooled, taps + c * pooled);
  }
}

template <typename Value>
void MaxPoolKernels<Value>::backward(const PoolGeometry& geometry, bool channels_last,
                                     const Value* gradient, const std::uint8_t* taps, Value* gx) {
  // Element (c, i, j) is at c * plane_step + (i * width + j) * pixel_step.
  const std::int64_t plane = geometry.height * geometry.width;
  const std::int64_t pixel_step = channels_last ? geometry.channels : 1;
  const std::int64_t planes = channels_last ? 1 : geometry.channels;
  const std::int64_t together = channels_last ? geometry.channels : 1;
  std::memset(static_cast<void*>(gx), 0,
              static_cast<std::size_t>(plane * geometry.channels) * sizeof(Value));
  for (std::int64_t p = 0; p < planes; ++p, gx += plane) {
    for (std::int64_t out = 0; out < geometry.pooled_height() * geometry.pooled_width(); ++out) {
      const std::int64_t top = stride * (out / geometry.pooled_width()) - 1;
      const std::int64_t left = stride * (out % geometry.pooled_width()) - 1;
      for (std::int64_t c = 0; c < together; ++c, ++gradient, ++taps) {
        const std::int64_t i = top + *taps / window;
        const std::int64_t j = left + *taps % window;
        Value& to = gx[(i * geometry.width + j) * pixel_step + c];
        store(to, load(to) + load(*gradient));
      }
    }
  }
}

template struct MaxPoolKernels<float>;
template struct MaxPoolKernels<BFloat16>;

}  // namespace ddprun::trainer
