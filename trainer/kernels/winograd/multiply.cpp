// The forward pass of winograd.h, which is the input's gradient too.
#include "trainer/kernels/winograd/memory.h"
#include "trainer/kernels/winograd/weights.h"

namespace ddprun::trainer {
namespace {

// Input channels whose weights are transformed at a time, to be used at once.
constexpr std::int64_t from_channels = strip_channels;

// Products of a strip: (position, tile, channel).
std::int64_t product_position(std::int64_t tiles, std::int64_t width) {
  return tiles * width + gap;
}

// All positions, for some of the input channels.
void multiply_positions(const WinogradShape& shape, std::int64_t tiles, const float* input,
                        WinogradRange from, const float* weights, const Strip& strip,
                        float* products) {
  const TileMemory memory(tiles, shape.in_channels);
  const float* first =
      input + from.begin / strip_channels * memory.strip + from.begin % strip_channels;
  for (std::int64_t p = 0; p < positions; ++p) {
    winograd_product({.rows = tiles,
                      .columns = strip.width,
                      .depth = from.size(),
                      .piece = strip_channels,
                      .a = first + p * memory.position,
                      .a_row = memory.row,
                      .a_step = 1,
                      .a_piece = memory.strip,
                      .b = weights + p * weight_position(from.size(), strip.width),
                      .b_step = strip.width,
                      .c = products + p * product_position(tiles, strip.width),
                      .c_row = strip.width,
                      .add = from.begin > 0});
  }
}

void multiply_strip(const WinogradShape& shape, std::int64_t tiles, const float* input,
                    const WinogradWeights& weights, const Strip& strip, float* products,
                    float* some_weights) {
  if (weights.transformed != nullptr) {
    const float* all = weights.transformed + weights_before(shape, strip.index);
    multiply_positions(shape, tiles, input, {0, shape.in_channels}, all, strip, products);
    return;
  }
  for (std::int64_t begin = 0; begin < shape.in_channels; begin += from_channels) {
    const WinogradRange from{begin, std::min(begin + from_channels, shape.in_channels)};
    transform_weight_block(shape, weights, from, {strip.begin, strip.begin + strip.width},
                           some_weights, weight_position(from.size(), strip.width));
    multiply_positions(shape, tiles, input, from, some_weights, strip, products);
  }
}

template <typename Value>
DDPRUN_INLINE void write_tiles(const WinogradShape& shape, WinogradRange tiles, const Strip& strip,
                               const float* products, Value* result) {
  Value outside[strip_channels];  // Never read.
  const std::int64_t position = product_position(tiles.size(), strip.width);
  using Pixels = TilePixels<Value, tile_side>;
  Value* target = result + strip.begin;
  Pixels next(shape, shape.out_channels, target, tiles.begin, 0, outside);
  for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Pixels pixels = next;
    next = Pixels(shape, shape.out_channels, target, std::min(tile + 1, tiles.end - 1), 0, outside);
    const float* source = products + (tile - tiles.begin) * strip.width;
    for (std::int64_t c = 0; c < strip.width; c += lanes) {
      next.fetch(c, 0);
      transform_square<ResultLine>(
          [&](int row, int column)
              __attribute__((always_inline)) { return source + (row * 6 + column) * position + c; },
          [&](int row, int column)
              __attribute__((always_inline)) { return pixels(row, column) + c; });
    }
  }
}

}  // namespace

DDPRUN_VECTOR_CLONES
void write_result(const WinogradShape& shape, WinogradRange tiles, const Strip& strip,
                  const float* products, float* result) {
  write_tiles(shape, tiles, strip, products, result);
}

DDPRUN_VECTOR_CLONES
void write_result(const WinogradShape& shape, WinogradRange tiles, const Strip& strip,
                  const float* products, BFloat16* result) {
  write_tiles(shape, tiles, strip, products, result);
}

std::int64_t winograd_scratch_size(const WinogradShape& shape, std::int64_t tiles) {
  const std::int64_t width = std::min(strip_channels, shape.out_channels);
  const std::int64_t from = std::min(from_channels, shape.in_channels);
  return positions * (product_position(tiles, width) + weight_position(from, width));
}

namespace {

template <typename Value>
void multiply_strips(const WinogradShape& shape, WinogradRange tiles, WinogradRange strips,
                     const float* input, const WinogradWeights& weights, Value* result,
                     float* scratch) {
  for (std::int64_t i = strips.begin; i < strips.end; ++i) {
    const Strip strip(i, shape.out_channels);
    float* products = scratch;
    float* some_weights = scratch + positions * product_position(tiles.size(), strip.width);
    multiply_strip(shape, tiles.size(), input, weights, strip, products, some_weights);
    write_result(shape, tiles, strip, products, result);
  }
}

}  // namespace

void winograd_multiply(const WinogradShape& shape, WinogradRange tiles, WinogradRange strips,
                       const float* input, const WinogradWeights& weights, float* result,
                       float* scratch) {
  multiply_strips(shape, tiles, strips, input, weights, result, scratch);
}

void winograd_multiply(const WinogradShape& shape, WinogradRange tiles, WinogradRange strips,
                       const float* input, const WinogradWeights& weights, BFloat16* result,
                       float* scratch) {
  multiply_strips(shape, tiles, strips, input, weights, result, scratch);
}

}  // namespace ddprun::trainer
