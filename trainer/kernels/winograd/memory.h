// Where the buffers of winograd.h have what, and where a tile's pixels lie.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trainer/kernels/vector_clones.h"
#include "trainer/kernels/winograd/product.h"
#include "trainer/kernels/winograd/transforms.h"
#include "trainer/kernels/winograd/winograd.h"

namespace ddprun::trainer {

inline constexpr std::int64_t positions = winograd_positions;

// Addresses that are a power of two apart share the few places of one line of a cache: positions
// get this much between them.
inline constexpr std::int64_t gap = lanes;

// A strip of the channels of a tensor.
struct Strip {
  DDPRUN_INLINE Strip(std::int64_t strip_index, std::int64_t channels)
      : index(strip_index),
        begin(index * strip_channels),
        width(std::min(strip_channels, channels - begin)) {}
  std::int64_t index;
  std::int64_t begin;
  std::int64_t width;
};

// Transformed tiles: (strip, position, tile, channel). All strips take the room of the first.
struct TileMemory {
  DDPRUN_INLINE TileMemory(std::int64_t tiles, std::int64_t channels)
      : row(std::min(strip_channels, channels)),
        position(tiles * row + gap),
        strip(positions * position) {}
  std::int64_t row;
  std::int64_t position;
  std::int64_t strip;
};

// Transformed weights of one strip: (position, from, to).
DDPRUN_INLINE std::int64_t weight_position(std::int64_t from, std::int64_t width) {
  return from * width + gap;
}

// Where the pixels of a tile lie that begins at (row, column) of an image and has `side` pixels on
// each side; for those outside of the image, `outside`.
template <typename Pixel, int side>
class TilePixels {
 public:
  DDPRUN_INLINE TilePixels(const WinogradShape& shape, std::int64_t channels, Pixel* images,
                           std::int64_t tile, std::int64_t margin, Pixel* outside) {
    const std::int64_t columns = shape.tile_columns();
    const std::int64_t rows = shape.tile_rows();
    const std::int64_t image = tile / (rows * columns);
    const std::int64_t in_image = tile - image * (rows * columns);
    const std::int64_t tile_row = in_image / columns;
    const std::int64_t top = tile_row * tile_side - margin;
    const std::int64_t left = (in_image - tile_row * columns) * tile_side - margin;
    for (int i = 0; i < side; ++i) {
      const bool row_inside = top + i >= 0 && top + i < shape.height;
      const std::int64_t line = ((image * shape.height + top + i) * shape.width + left) * channels;
      for (int j = 0; j < side; ++j) {
        const bool inside = row_inside && left + j >= 0 && left + j < shape.width;
        pixels_[i][j] = inside ? images + (line + j * channels) : outside;
      }
    }
  }

  DDPRUN_INLINE Pixel* operator()(int i, int j) const { return pixels_[i][j]; }

  // Has sixteen channels from c on loaded into the cache, of all columns from the given one on.
  DDPRUN_INLINE void fetch(std::int64_t c, std::int64_t from_column) const {
    constexpr std::int64_t line = 64 / sizeof(Pixel);
    if (line > lanes && c % line != 0) return;  // Came with the channels before.
    for (int i = 0; i < side; ++i) {
      for (std::int64_t j = from_column; j < side; ++j) __builtin_prefetch(pixels_[i][j] + c);
    }
  }

 private:
  Pixel* pixels_[side][side];
};

}  // namespace ddprun::trainer
