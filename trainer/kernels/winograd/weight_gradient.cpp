// The weights' gradient of winograd.h.
#include "trainer/kernels/winograd/memory.h"

namespace ddprun::trainer {
namespace {

// A strip of result channels and one of input channels; their sums: (position, out, in).
struct Block {
  Block(const WinogradShape& shape, std::int64_t block)
      : in(block % winograd_strips(shape.in_channels), shape.in_channels),
        out(block / winograd_strips(shape.in_channels), shape.out_channels),
        position(out.width * in.width + gap) {}

  Strip in;
  Strip out;
  std::int64_t position;
};

}  // namespace

std::int64_t winograd_gradient_blocks(const WinogradShape& shape) {
  return winograd_strips(shape.out_channels) * winograd_strips(shape.in_channels);
}

std::int64_t winograd_gradient_size(const WinogradShape& shape) {
  return positions * Block(shape, 0).position;  // No other block is larger.
}

void winograd_add_products(const WinogradShape& shape, std::int64_t tiles, std::int64_t block,
                           WinogradRange some, const float* input, const float* gradient,
                           bool first, float* sums) {
  const Block part(shape, block);
  const TileMemory inputs(tiles, shape.in_channels);
  const TileMemory gradients(tiles, shape.out_channels);
  for (std::int64_t p = some.begin; p < some.end; ++p) {
    winograd_product({.rows = part.out.width,
                      .columns = part.in.width,
                      .depth = tiles,
                      .piece = tiles,
                      .a = gradient + part.out.index * gradients.strip + p * gradients.position,
                      .a_row = 1,
                      .a_step = gradients.row,
                      .b = input + part.in.index * inputs.strip + p * inputs.position,
                      .b_step = inputs.row,
                      .c = sums + p * part.position,
                      .c_row = part.in.width,
                      .add = !first});
  }
}

DDPRUN_VECTOR_CLONES
void winograd_finish_gradient(const WinogradShape& shape, std::int64_t block, const float* sums,
                              float* weight_gradient) {
  const Block part(shape, block);
  for (std::int64_t i = 0; i < part.out.width; ++i) {
    const float* source = sums + i * part.in.width;
    float* target = weight_gradient + (part.out.begin + i) * 9 * shape.in_channels + part.in.begin;
    for (std::int64_t c = 0; c < part.in.width; c += lanes) {
      transform_square<WeightGradientLine>(
          [&](int row, int column) __attribute__((always_inline)) {
            return source + (row * 6 + column) * part.position + c;
          },
          [&](int row, int column) __attribute__((always_inline)) {
            return target + (row * 3 + column) * shape.in_channels + c;
          });
    }
  }
}

}  // namespace ddprun::trainer
