// A batch from a data set whose bytes lie in the device's memory: each image is shifted, mirrored
// and normalised on the way, as write_normalized() (trainer/data/normalize.h) does it for the
// loader, by the same table, so that both give the same bits.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>

#include "trainer/kernels/device/number_format.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

// Which image becomes a sample, and how; the loader's SamplePlan, as far as images that are neither
// cut nor resized have one.
struct ResidentSample {
  std::int32_t image = 0;
  std::int16_t shift_down = 0;
  std::int16_t shift_right = 0;
  std::int32_t flip = 0;
};

struct GatherBatch {
  const std::uint8_t* pixels = nullptr;  // Image after image: channel planes, row by row.
  const std::int64_t* labels = nullptr;  // Of all images.
  const float* table = nullptr;          // 256 values for each channel.
  const ResidentSample* samples = nullptr;
  std::int64_t count = 0;  // Samples of the batch.
  std::int32_t channels = 0;
  std::int32_t height = 0;
  std::int32_t width = 0;
  std::int32_t channels_last = 0;
  NumberFormat format = NumberFormat::Float32;
  void* images = nullptr;  // What is written, and
  std::int64_t* batch_labels = nullptr;
};

// Blocks for one image.
DDPRUN_HOST_DEVICE inline std::uint32_t gather_blocks(const GatherBatch& batch) {
  const auto elements = static_cast<std::uint32_t>(batch.channels * batch.height * batch.width);
  return (elements + kernel_threads - 1) / kernel_threads;
}

// What is not covered holds byte 0 and not 0.0: images are padded before they are normalised.
DDPRUN_HOST_DEVICE inline float gathered_value(const GatherBatch& batch,
                                               const ResidentSample& sample, std::int32_t channel,
                                               std::int32_t row, std::int32_t column) {
  const std::int32_t from_row = row - sample.shift_down;
  const std::int32_t mirrored = sample.flip != 0 ? batch.width - 1 - column : column;
  const std::int32_t from_column = mirrored - sample.shift_right;
  const bool covered =
      from_row >= 0 && from_row < batch.height && from_column >= 0 && from_column < batch.width;
  const std::int64_t plane = std::int64_t{sample.image} * batch.channels + channel;
  const std::uint8_t byte =
      covered ? batch.pixels[(plane * batch.height + from_row) * batch.width + from_column] : 0;
  return batch.table[channel * 256 + byte];
}

DDPRUN_HOST_DEVICE inline void gather_thread(const GatherBatch& batch, KernelPlace place) {
  const std::uint32_t blocks = gather_blocks(batch);
  const std::int64_t number = place.block / blocks;
  const ResidentSample sample = batch.samples[number];
  const std::uint32_t at = place.block % blocks * kernel_threads + place.thread;
  if (at == 0) batch.batch_labels[number] = batch.labels[sample.image];
  const auto channels = static_cast<std::uint32_t>(batch.channels);
  const auto height = static_cast<std::uint32_t>(batch.height);
  const auto width = static_cast<std::uint32_t>(batch.width);
  const std::uint32_t elements = channels * height * width;
  if (at >= elements) return;
  const bool last = batch.channels_last != 0;
  const std::uint32_t pixel = last ? at / channels : at % (height * width);
  const std::uint32_t channel = last ? at % channels : at / (height * width);
  store_number(batch.images, number * elements + at,
               gathered_value(batch, sample, static_cast<std::int32_t>(channel),
                              static_cast<std::int32_t>(pixel / width),
                              static_cast<std::int32_t>(pixel % width)),
               batch.format);
}

}  // namespace ddprun::trainer
