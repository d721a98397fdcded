// A batch of bytes -> the floats that a network sees, by the loader's table and in the order of the
// bytes: for batches that travel to the device before they are normalised, in a quarter of the
// bytes. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>

#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

struct NormalizeBatch {
  const std::uint8_t* bytes = nullptr;
  const float* table = nullptr;  // 256 values for each channel.
  float* images = nullptr;       // What is written.
  std::int64_t elements = 0;     // Of all images.
  std::int64_t plane = 0;        // Pixels of an image.
  std::int32_t channels = 0;
  std::int32_t channels_last = 0;  // Order of both.
};

DDPRUN_HOST_DEVICE inline std::int64_t normalize_blocks(const NormalizeBatch& batch) {
  return (batch.elements + kernel_threads - 1) / kernel_threads;
}

DDPRUN_HOST_DEVICE inline void normalize_thread(const NormalizeBatch& batch, KernelPlace place) {
  const std::int64_t at = std::int64_t{place.block} * kernel_threads + place.thread;
  if (at >= batch.elements) return;
  const std::int64_t before = batch.channels_last != 0 ? at : at / batch.plane;
  batch.images[at] = batch.table[before % batch.channels * 256 + batch.bytes[at]];
}

}  // namespace ddprun::trainer
