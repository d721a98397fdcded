// Who works where on activations in channels-last order: how the blocks of a launch share out rows
// and channels, and the rows of one thread. A row is a pixel with all its channels; a thread has
// eight of them side by side, of every so many-th row of its block's part. It follows from the
// shape alone, and so does the order of every sum. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>

#include "trainer/kernels/device/number_vector.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

inline constexpr std::int32_t norm_sums = 2 * vector_numbers;  // Of a thread: two for each channel.
// Rows that a thread reads before it uses the first: four where it reads one tensor, two where it
// reads two or three and registers are what keeps blocks from being there at once.
inline constexpr std::int32_t norm_rows_at_once_max = 4;
inline constexpr std::int32_t norm_rows_at_once = 2;
// Blocks of a launch: three for each of an H100's or H200's multiprocessors, in 16 bits all there
// at once, so that none begins when the others end (docs/measurements/gpu.md).
inline constexpr std::int64_t norm_blocks_max = 396;
// Threads that add up the parts of one channel.
inline constexpr std::int32_t norm_part_lanes =
    static_cast<std::int32_t>(kernel_threads) / vector_numbers;

// How the blocks share out the memory.
struct NormGeometry {
  std::int64_t rows = 0;       // N * H * W, at least 2.
  std::int32_t channels = 0;   // A multiple of vector_numbers.
  std::int32_t lanes = 0;      // Threads of a block along the channels,
  std::int32_t lines = 0;      // and along the rows.
  std::int32_t tiles = 0;      // Blocks along the channels,
  std::int64_t parts = 0;      // and along the rows.
  std::int64_t part_rows = 0;  // The last part may have fewer.
};

inline NormGeometry norm_geometry(std::int64_t rows, std::int32_t channels) {
  const auto divide_up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  constexpr std::int32_t lanes_max = 32;
  const std::int32_t vectors = channels / vector_numbers;
  NormGeometry geometry{.rows = rows, .channels = channels};
  geometry.tiles = static_cast<std::int32_t>(divide_up(vectors, lanes_max));
  geometry.lanes = static_cast<std::int32_t>(divide_up(vectors, geometry.tiles));
  geometry.lines = static_cast<std::int32_t>(kernel_threads) / geometry.lanes;
  const std::int64_t parts_max =
      norm_blocks_max / geometry.tiles > 1 ? norm_blocks_max / geometry.tiles : 1;
  const std::int64_t of_full_threads =
      divide_up(rows, std::int64_t{geometry.lines} * norm_rows_at_once_max);
  geometry.part_rows = divide_up(rows, of_full_threads < parts_max ? of_full_threads : parts_max);
  geometry.parts = divide_up(rows, geometry.part_rows);
  return geometry;
}

DDPRUN_HOST_DEVICE inline std::int64_t norm_blocks(const NormGeometry& geometry) {
  return geometry.parts * geometry.tiles;
}

// Where a thread works: in each of its rows on one vector.
struct NormThread {
  std::int64_t first = 0;  // Row; none before `end` for a thread that has nothing to do.
  std::int64_t end = 0;
  std::int64_t step = 0;
  std::int64_t vectors = 0;  // Of a row.
  std::int32_t vector = 0;

  DDPRUN_HOST_DEVICE std::int64_t at(std::int64_t row) const { return row * vectors + vector; }
};

DDPRUN_HOST_DEVICE inline NormThread norm_thread(const NormGeometry& geometry, KernelPlace place) {
  const std::int32_t thread = static_cast<std::int32_t>(place.thread);
  const std::int64_t part = place.block / geometry.tiles;
  const std::int64_t tile = place.block % geometry.tiles;
  const std::int32_t line = thread / geometry.lanes;
  NormThread own{.step = geometry.lines, .vectors = geometry.channels / vector_numbers};
  own.vector = static_cast<std::int32_t>(tile * geometry.lanes + thread % geometry.lanes);
  if (line >= geometry.lines || own.vector >= own.vectors) return own;
  own.first = part * geometry.part_rows + line;
  own.end = (part + 1) * geometry.part_rows;
  if (own.end > geometry.rows) own.end = geometry.rows;
  return own;
}

// load(row, k) for the k-th of `at_once` rows, and then use(row, k) of each: the device waits for
// memory once for all of them. What is left over at the end goes one by one.
template <int at_once, typename Load, typename Use>
DDPRUN_HOST_DEVICE void for_each_row(const NormThread& own, Load load, Use use) {
  std::int64_t row = own.first;
  for (; row + (at_once - 1) * own.step < own.end; row += at_once * own.step) {
    for (int k = 0; k < at_once; ++k) load(row + k * own.step, k);
    for (int k = 0; k < at_once; ++k) use(row + k * own.step, k);
  }
  for (; row < own.end; row += own.step) {
    load(row, 0);
    use(row, 0);
  }
}

}  // namespace ddprun::trainer
