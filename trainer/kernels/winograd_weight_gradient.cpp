// The weights' gradient of winograd.h.
#include "trainer/kernels/winograd_memory.h"

namespace ddprun::trainer {
namespace {

#ifndef GROWS
#define GROWS 32
#endif
// Result channels of a block; it has a strip of input channels.
constexpr std::int64_t block_channels = GROWS;

// Sums of a block: (position, result channel, input channel).
struct Block {
  Block(const WinogradShape& shape, std::int64_t block)
      : strip(block % winograd_strips(shape.in_channels), shape.in_channels),
        begin(block / winograd_strips(shape.in_channels) * block_channels),
        rows(std::min(block_channels, shape.out_channels - begin)),
        position(rows * strip.width + gap) {}

  Strip strip;
  std::int64_t begin;
  std::int64_t rows;
  std::int64_t position;
};

}  // namespace

std::int64_t winograd_gradient_blocks(const WinogradShape& shape) {
  return (shape.out_channels + block_channels - 1) / block_channels *
         winograd_strips(shape.in_channels);
}

std::int64_t winograd_gradient_size(const WinogradShape& shape) {
  return positions * Block(shape, 0).position;
}

void winograd_add_products(const WinogradShape& shape, std::int64_t tiles, std::int64_t block,
                           const float* input, const float* gradient, bool first, float* sums) {
  const Block part(shape, block);
  const TileMemory inputs(tiles, shape.in_channels);
  const TileMemory gradients(tiles, shape.out_channels);
  for (std::int64_t p = 0; p < positions; ++p) {
    winograd_product({.rows = part.rows,
                      .columns = part.strip.width,
                      .depth = tiles,
                      .a = gradient + p * gradients.position + part.begin,
                      .a_row = 1,
                      .a_step = gradients.row,
                      .b = input + p * inputs.position + part.strip.begin,
                      .b_step = inputs.row,
                      .c = sums + p * part.position,
                      .c_row = part.strip.width,
                      .add = !first});
  }
}

DDPRUN_VECTOR_CLONES
void winograd_finish_gradient(const WinogradShape& shape, std::int64_t block, const float* sums,
                              float* weight_gradient) {
  const Block part(shape, block);
  for (std::int64_t i = 0; i < part.rows; ++i) {
    float* target = weight_gradient + (part.begin + i) * 9 * shape.in_channels + part.strip.begin;
    for (std::int64_t c = 0; c < part.strip.width; c += lanes) {
      transform_square<WeightGradientLine>(
          [&](int row, int column) __attribute__((always_inline)) {
            return sums + (row * 6 + column) * part.position + i * part.strip.width + c;
          },
          [&](int row, int column) __attribute__((always_inline)) {
            return target + (row * 3 + column) * shape.in_channels + c;
          });
    }
  }
}

}  // namespace ddprun::trainer
