// The max-pooling after a ResNet's first convolution, 3 x 3 with stride 2 and padding 1, on
// channels-last memory. For each result forward notes in a byte where its value came from, where
// LibTorch notes eight; backward collects for each input what came from it, where scattering needs
// atomic additions and zeros to begin with. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>

#include "trainer/kernels/device/number_vector.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

inline constexpr std::int32_t pool_side = 3;

// (N, H, W, C) in memory.
struct PoolShape {
  std::int64_t images = 0;
  std::int32_t height = 0;  // Before pooling; at least 1, as is the width.
  std::int32_t width = 0;
  std::int32_t channels = 0;  // A multiple of vector_numbers.

  DDPRUN_HOST_DEVICE std::int32_t pooled_height() const { return (height - 1) / 2 + 1; }
  DDPRUN_HOST_DEVICE std::int32_t pooled_width() const { return (width - 1) / 2 + 1; }
  DDPRUN_HOST_DEVICE std::int32_t vectors() const { return channels / vector_numbers; }
};

// The first of equal values wins, NaN over all (the last one), as in torch.nn.MaxPool2d.
struct PoolForward {
  PoolShape shape;
  NumberFormat format = NumberFormat::Float32;
  const void* x = nullptr;
  void* y = nullptr;
  // For each result 3 * row + column of the window; a vector's in one word, the first lowest.
  std::uint64_t* taps = nullptr;
};

struct PoolBackward {
  PoolShape shape;
  NumberFormat format = NumberFormat::Float32;
  const void* gradient = nullptr;  // Of y.
  const std::uint64_t* taps = nullptr;
  void* x_gradient = nullptr;  // Overwritten.
};

// A block has a row of what is written.
inline std::int64_t pool_blocks(const PoolForward& pass) {
  return pass.shape.images * pass.shape.pooled_height();
}
inline std::int64_t pool_blocks(const PoolBackward& pass) {
  return pass.shape.images * pass.shape.height;
}

// Calls visit(tap, row, column) for the places of the window around a result that lie within the
// image.
template <typename Visit>
DDPRUN_HOST_DEVICE void for_window(const PoolShape& shape, std::int32_t pooled_row,
                                   std::int32_t pooled_column, Visit visit) {
  for (std::int32_t r = 0; r < pool_side; ++r) {
    const std::int32_t row = 2 * pooled_row - 1 + r;
    if (row < 0 || row >= shape.height) continue;
    for (std::int32_t c = 0; c < pool_side; ++c) {
      const std::int32_t column = 2 * pooled_column - 1 + c;
      if (column >= 0 && column < shape.width) visit(pool_side * r + c, row, column);
    }
  }
}

// Calls visit(tap, pooled row, pooled column) for the results in whose windows a place lies, which
// are four at most, and for which of a window's places it is.
template <typename Visit>
DDPRUN_HOST_DEVICE void for_results(const PoolShape& shape, std::int32_t row, std::int32_t column,
                                    Visit visit) {
  for (std::int32_t r = (row + 1) % 2; r < pool_side; r += 2) {
    const std::int32_t pooled_row = (row + 1 - r) / 2;
    if (pooled_row >= shape.pooled_height()) continue;
    for (std::int32_t c = (column + 1) % 2; c < pool_side; c += 2) {
      const std::int32_t pooled_column = (column + 1 - c) / 2;
      if (pooled_column < shape.pooled_width()) {
        visit(pool_side * r + c, pooled_row, pooled_column);
      }
    }
  }
}

template <NumberFormat format>
DDPRUN_HOST_DEVICE void pool_thread(const PoolForward& pass, KernelPlace place) {
  const PoolShape& shape = pass.shape;
  const std::int32_t vectors = shape.vectors();
  const std::int64_t image = place.block / static_cast<std::uint32_t>(shape.pooled_height());
  const auto pooled_row =
      static_cast<std::int32_t>(place.block % static_cast<std::uint32_t>(shape.pooled_height()));
  const std::int32_t in_row = shape.pooled_width() * vectors;
  for (auto i = static_cast<std::int32_t>(place.thread); i < in_row;
       i += static_cast<std::int32_t>(kernel_threads)) {
    float best[vector_numbers] = {};
    std::uint64_t taps = 0;
    bool first = true;
    for_window(shape, pooled_row, i / vectors,
               [&](std::int32_t tap, std::int32_t row, std::int32_t column) {
                 const NumberVector<format> x = load_vector<format>(
                     pass.x,
                     ((image * shape.height + row) * shape.width + column) * vectors + i % vectors);
                 for (int k = 0; k < vector_numbers; ++k) {
                   const float value = number_of<format>(x, k);
                   if (!first && !(value > best[k]) && value == value) continue;
                   best[k] = value;
                   taps = (taps & ~(std::uint64_t{0xff} << (8 * k))) |
                          static_cast<std::uint64_t>(tap) << (8 * k);
                 }
                 first = false;
               });
    const std::int64_t at = std::int64_t{place.block} * in_row + i;
    store_vector<format>(pass.y, at, best);
    pass.taps[at] = taps;
  }
}

template <NumberFormat format>
DDPRUN_HOST_DEVICE void pool_thread(const PoolBackward& pass, KernelPlace place) {
  const PoolShape& shape = pass.shape;
  const std::int32_t vectors = shape.vectors();
  const std::int64_t image = place.block / static_cast<std::uint32_t>(shape.height);
  const auto row =
      static_cast<std::int32_t>(place.block % static_cast<std::uint32_t>(shape.height));
  const std::int32_t in_row = shape.width * vectors;
  for (auto i = static_cast<std::int32_t>(place.thread); i < in_row;
       i += static_cast<std::int32_t>(kernel_threads)) {
    float sum[vector_numbers] = {};
    for_results(shape, row, i / vectors,
                [&](std::int32_t tap, std::int32_t pooled_row, std::int32_t pooled_column) {
                  const std::int64_t at =
                      ((image * shape.pooled_height() + pooled_row) * shape.pooled_width() +
                       pooled_column) *
                          vectors +
                      i % vectors;
                  const std::uint64_t taps = pass.taps[at];
                  const NumberVector<format> gradient = load_vector<format>(pass.gradient, at);
                  for (int k = 0; k < vector_numbers; ++k) {
                    if ((taps >> (8 * k) & 0xff) == static_cast<std::uint64_t>(tap)) {
                      sum[k] += number_of<format>(gradient, k);
                    }
                  }
                });
    store_vector<format>(pass.x_gradient, std::int64_t{place.block} * in_row + i, sum);
  }
}

}  // namespace ddprun::trainer
