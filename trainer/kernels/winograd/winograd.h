// Convolutions of 3 x 3 with stride 1 and padding 1 on channels-last images by Winograd's algorithm
// F(4x4, 3x3): for 4 x 4 results 36 products per pair of channels instead of 144. After Lavin and
// Gray (2015, arXiv 1509.09308), section 4. On raw memory: no tensors, no threads.
//
// The images are cut into tiles of 4 x 4 pixels of the result, numbered image by image and row by
// row. Each tile of each tensor becomes 36 numbers per channel, one for each "position"; then each
// position is a product of matrices of its own:
//
//   forward           result(tile, out)  = input(tile, in)        * weight(in, out)
//   input's gradient  the same convolution, of the result's gradient, with other weights
//   weights' gradient gradient(out, in)  = gradient(tile, out)^T  * input(tile, in)
//
// The work is cut into ranges of tiles, so that what they become stays in the cache, and into
// strips of at most 64 channels. Callers may share both out over threads: calls for different
// strips, or for different tiles, write different memory.
//
// Rounding errors are a few times those of adding up products, because the transforms add numbers
// that are larger than the result; tests/trainer/models/winograd_test.cpp compares them. A value
// that is not finite makes all results of its tile NaN.
//
// Images, and what has their shape, are floats or bfloat16, which halves the memory to move. All
// is computed in float with the weights' floats: a bfloat16 result is rounded once, when it is
// written, and the weights' gradient is not rounded.
#pragma once

#include <cstdint>

#include "trainer/kernels/vector_clones.h"

namespace ddprun::trainer {

// Of the forward convolution. Images are (images, height, width, channels) in memory, weights
// (out_channels, 3, 3, in_channels), both dense.
struct WinogradShape {
  std::int64_t images = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;

  std::int64_t tile_rows() const { return (height + 3) / 4; }
  std::int64_t tile_columns() const { return (width + 3) / 4; }
  std::int64_t tiles() const { return images * tile_rows() * tile_columns(); }

  // The convolution that makes the input's gradient of the result's.
  WinogradShape reversed() const { return {images, height, width, out_channels, in_channels}; }
};

// At least one pixel, and channels in multiples of 16. Everything below is for such shapes.
bool winograd_fits(const WinogradShape& shape);

// Whether the kernels are compiled for this processor's vectors, of 256 bits at least. Without them
// there are faster convolutions.
bool winograd_is_fast();

// Strips of the result's channels; the last one may be narrower than 64.
std::int64_t winograd_strips(std::int64_t channels);

inline constexpr std::int64_t winograd_positions = 36;

struct WinogradRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

// All buffers but images are floats, aligned to 64 bytes; sizes are numbers of floats.

// --- Tiles ---

// Of so many tiles with so many channels, transformed.
std::int64_t winograd_tiles_size(std::int64_t tiles, std::int64_t channels);

// `images` has shape.in_channels. Writes those of `part`, which lies in `tiles`; `transformed` is
// for all of `tiles`.
void winograd_transform_input(const WinogradShape& shape, WinogradRange tiles, WinogradRange part,
                              const float* images, float* transformed);
void winograd_transform_input(const WinogradShape& shape, WinogradRange tiles, WinogradRange part,
                              const BFloat16* images, float* transformed);

// The same for the gradient of the result, with shape.out_channels, as the weights' gradient needs
// it.
void winograd_transform_gradient(const WinogradShape& shape, WinogradRange tiles,
                                 WinogradRange part, const float* gradient, float* transformed);
void winograd_transform_gradient(const WinogradShape& shape, WinogradRange tiles,
                                 WinogradRange part, const BFloat16* gradient, float* transformed);

// --- Forward, and the input's gradient ---

// `weight`, as it lies in memory, is that of the forward pass. Of the two shapes,
// `shape.reversed()` and reversed = true make the input's gradient.
struct WinogradWeights {
  const float* weight = nullptr;
  bool reversed = false;
  const float* transformed = nullptr;  // Null: transform them on the way.
};

std::int64_t winograd_weights_size(const WinogradShape& shape);

void winograd_transform_weights(const WinogradShape& shape, WinogradRange strips,
                                const WinogradWeights& weights, float* transformed);

// Of winograd_multiply() with so many tiles; each thread needs its own.
std::int64_t winograd_scratch_size(const WinogradShape& shape, std::int64_t tiles);

// Writes the channels of `strips` of the tiles to `result`, the whole tensor. `input` is
// transformed.
void winograd_multiply(const WinogradShape& shape, WinogradRange tiles, WinogradRange strips,
                       const float* input, const WinogradWeights& weights, float* result,
                       float* scratch);
void winograd_multiply(const WinogradShape& shape, WinogradRange tiles, WinogradRange strips,
                       const float* input, const WinogradWeights& weights, BFloat16* result,
                       float* scratch);

// --- The weights' gradient ---

// Blocks of a strip of result channels and one of input channels.
std::int64_t winograd_gradient_blocks(const WinogradShape& shape);

// Of the sums of one block.
std::int64_t winograd_gradient_size(const WinogradShape& shape);

// Adds the products of so many tiles to the sums of a block at some of the positions, or, with
// `first`, sets them. Both tensors are transformed. Sums depend in their rounding on how the tiles
// are cut into calls.
void winograd_add_products(const WinogradShape& shape, std::int64_t tiles, std::int64_t block,
                           WinogradRange positions, const float* input, const float* gradient,
                           bool first, float* sums);

// Writes the block's part of the weights' gradient, (out_channels, 3, 3, in_channels).
void winograd_finish_gradient(const WinogradShape& shape, std::int64_t block, const float* sums,
                              float* weight_gradient);

}  // namespace ddprun::trainer
