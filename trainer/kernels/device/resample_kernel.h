// Images of any size in the memory of the device -> a batch of bytes: of each a box is resized,
// shifted and mirrored. The arithmetic is Resampler's (trainer/data/images/resample.h), so that an
// image of the same pixels gives the same bytes here as in the loader.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

// Weights are in units of 2^-22.
inline constexpr int resample_fraction_bits = 22;

// One direction of a resize. The table has an entry for each output pixel: the first input pixel
// that it is made of, how many they are, and their weights, of which there is room for `taps_max`.
struct ResampleAxis {
  const std::int32_t* table = nullptr;
  std::int32_t taps_max = 0;
};

struct ResampledImage {
  const std::uint8_t* pixels = nullptr;  // Red, green, blue; of the box the pixel at the top left.
  std::int64_t row_bytes = 0;            // From one row to the next.
  ResampleAxis columns, rows;
  std::int64_t place = 0;  // In the batch.
  std::int32_t shift_down = 0;
  std::int32_t shift_right = 0;
  std::int32_t flip = 0;
  std::int32_t columns_first = 0;  // Which direction is rounded to bytes before the other.
};

struct ResampleBatch {
  const ResampledImage* images = nullptr;
  std::int64_t count = 0;
  std::int32_t side = 0;
  std::int32_t channels_last = 0;
  std::uint8_t* out = nullptr;  // Of the whole batch; the places of other images stay as they are.
};

// Blocks for one image. A thread makes a pixel: its three channels have the same weights.
DDPRUN_HOST_DEVICE inline std::uint32_t resample_blocks(const ResampleBatch& batch) {
  const auto pixels = static_cast<std::uint32_t>(batch.side * batch.side);
  return (pixels + kernel_threads - 1) / kernel_threads;
}

DDPRUN_HOST_DEVICE inline const std::int32_t* entry_of(const ResampleAxis& axis,
                                                       std::int32_t pixel) {
  return axis.table + std::int64_t{pixel} * (axis.taps_max + 2);
}

DDPRUN_HOST_DEVICE inline std::uint8_t weighted_byte(std::int32_t sum) {
  const std::int32_t value = sum >> resample_fraction_bits;
  return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

struct RgbPixel {
  std::uint8_t channels[3] = {0, 0, 0};
};

// Lines along `inner` become bytes each, and those bytes one along `outer`.
DDPRUN_HOST_DEVICE inline RgbPixel resampled_pixel(const std::uint8_t* pixels,
                                                   const std::int32_t* outer,
                                                   std::int64_t outer_step,
                                                   const std::int32_t* inner,
                                                   std::int64_t inner_step) {
  constexpr std::int32_t rounding = 1 << (resample_fraction_bits - 1);
  std::int32_t sums[3] = {rounding, rounding, rounding};
  for (std::int32_t k = 0; k < outer[1]; ++k) {
    const std::uint8_t* at = pixels + (outer[0] + k) * outer_step + inner[0] * inner_step;
    std::int32_t line[3] = {rounding, rounding, rounding};
    for (std::int32_t i = 0; i < inner[1]; ++i, at += inner_step) {
      for (int c = 0; c < 3; ++c) line[c] += at[c] * inner[2 + i];
    }
    for (int c = 0; c < 3; ++c) sums[c] += weighted_byte(line[c]) * outer[2 + k];
  }
  RgbPixel pixel;
  for (int c = 0; c < 3; ++c) pixel.channels[c] = weighted_byte(sums[c]);
  return pixel;
}

// What is not covered is black: images are shifted before they are normalised.
DDPRUN_HOST_DEVICE inline RgbPixel placed_pixel(const ResampledImage& image, std::int32_t side,
                                                std::int32_t row, std::int32_t column) {
  const std::int32_t from_row = row - image.shift_down;
  const std::int32_t mirrored = image.flip != 0 ? side - 1 - column : column;
  const std::int32_t from_column = mirrored - image.shift_right;
  if (from_row < 0 || from_row >= side || from_column < 0 || from_column >= side) return {};
  const std::int32_t* const of_column = entry_of(image.columns, from_column);
  const std::int32_t* const of_row = entry_of(image.rows, from_row);
  if (image.columns_first != 0) {
    return resampled_pixel(image.pixels, of_column, 3, of_row, image.row_bytes);
  }
  return resampled_pixel(image.pixels, of_row, image.row_bytes, of_column, 3);
}

DDPRUN_HOST_DEVICE inline void resample_thread(const ResampleBatch& batch, KernelPlace place) {
  const std::uint32_t blocks = resample_blocks(batch);
  const auto pixels = static_cast<std::uint32_t>(batch.side * batch.side);
  const std::uint32_t at = place.block % blocks * kernel_threads + place.thread;
  if (at >= pixels) return;
  const ResampledImage& image = batch.images[place.block / blocks];
  const auto side = static_cast<std::uint32_t>(batch.side);
  const RgbPixel pixel = placed_pixel(image, batch.side, static_cast<std::int32_t>(at / side),
                                      static_cast<std::int32_t>(at % side));
  std::uint8_t* const out = batch.out + image.place * 3 * pixels;
  for (std::uint32_t c = 0; c < 3; ++c) {
    out[batch.channels_last != 0 ? at * 3 + c : c * pixels + at] = pixel.channels[c];
  }
}

}  // namespace ddprun::trainer
