// What becomes of tiles of images: the parts of winograd.h that read images. The pixels of the next
// tile are fetched while this one is transformed.
#include "trainer/kernels/winograd/memory.h"

namespace ddprun::trainer {
namespace {

template <typename Value>
constexpr Value zeros[strip_channels] = {};

template <typename Line, typename Value>
DDPRUN_INLINE void transform_tiles(const WinogradShape& shape, std::int64_t channels,
                                   WinogradRange tiles, WinogradRange part, const Value* images,
                                   float* transformed) {
  using Pixels = TilePixels<const Value, Line::from>;
  const TileMemory memory(tiles.size(), channels);
  const std::int64_t margin = Line::from == tile_side ? 0 : 1;
  for (std::int64_t i = 0; i < winograd_strips(channels); ++i) {
    const Strip strip(i, channels);
    const Value* source = images + strip.begin;
    Pixels next(shape, channels, source, part.begin, margin, zeros<Value>);
    for (std::int64_t tile = part.begin; tile < part.end; ++tile) {
      const Pixels pixels = next;
      next =
          Pixels(shape, channels, source, std::min(tile + 1, part.end - 1), margin, zeros<Value>);
      float* to = transformed + i * memory.strip + (tile - tiles.begin) * memory.row;
      for (std::int64_t c = 0; c < strip.width; c += lanes) {
        // Ahead of time: up to a fifth of a pass at 56 x 56 (docs/measurements/convolutions.md).
        next.fetch(c, margin * 2);
        transform_square<Line>(
            [&](int row, int column)
                __attribute__((always_inline)) { return pixels(row, column) + c; },
            [&](int row, int column) __attribute__((always_inline)) {
              return to + (row * 6 + column) * memory.position + c;
            });
      }
    }
  }
}

}  // namespace

DDPRUN_VECTOR_CLONES
void winograd_transform_input(const WinogradShape& shape, WinogradRange tiles, WinogradRange part,
                              const float* images, float* transformed) {
  transform_tiles<InputLine>(shape, shape.in_channels, tiles, part, images, transformed);
}

DDPRUN_VECTOR_CLONES
void winograd_transform_input(const WinogradShape& shape, WinogradRange tiles, WinogradRange part,
                              const BFloat16* images, float* transformed) {
  transform_tiles<InputLine>(shape, shape.in_channels, tiles, part, images, transformed);
}

DDPRUN_VECTOR_CLONES
void winograd_transform_gradient(const WinogradShape& shape, WinogradRange tiles,
                                 WinogradRange part, const float* gradient, float* transformed) {
  transform_tiles<GradientLine>(shape, shape.out_channels, tiles, part, gradient, transformed);
}

DDPRUN_VECTOR_CLONES
void winograd_transform_gradient(const WinogradShape& shape, WinogradRange tiles,
                                 WinogradRange part, const BFloat16* gradient, float* transformed) {
  transform_tiles<GradientLine>(shape, shape.out_channels, tiles, part, gradient, transformed);
}

bool winograd_fits(const WinogradShape& shape) {
  return shape.images > 0 && shape.height > 0 && shape.width > 0 && shape.in_channels > 0 &&
         shape.out_channels > 0 && shape.in_channels % lanes == 0 &&
         shape.out_channels % lanes == 0;
}

std::int64_t winograd_strips(std::int64_t channels) {
  return (channels + strip_channels - 1) / strip_channels;
}

std::int64_t winograd_tiles_size(std::int64_t tiles, std::int64_t channels) {
  return winograd_strips(channels) * TileMemory(tiles, channels).strip;
}

}  // namespace ddprun::trainer
