// Many tensors from one number format into another in one launch, where LibTorch has one for each:
// the 54 weights of a ResNet-50 that a step in 16 bits computes with, say, or their gradients.
//
// The list travels with the launch, not through the device's memory: gradients lie elsewhere in
// each step, and a table would have to be copied there before. A core: no sockets, threads or
// clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "trainer/kernels/device/number_format.h"
#include "trainer/kernels/device/number_vector.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

// Both dense, and in one order.
struct CastSegment {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t count = 0;
};

// Of a launch: CUDA passes 4 KiB of arguments at most.
inline constexpr std::int32_t cast_segments_max = 64;

struct CastPass {
  CastSegment segments[cast_segments_max];
  std::int32_t first_block[cast_segments_max + 1] = {};  // Of each segment; the last: how many.
  std::int32_t segment_count = 0;
  NumberFormat from = NumberFormat::Float32;
  NumberFormat to = NumberFormat::BFloat16;

  std::int64_t blocks() const { return first_block[segment_count]; }
};
static_assert(sizeof(CastPass) <= 4096);

// `segments`: cast_segments_max of them at most. Throws std::invalid_argument for more, or for more
// elements than a grid has threads.
inline CastPass cast_pass(const std::vector<CastSegment>& segments, NumberFormat from,
                          NumberFormat to) {
  if (segments.size() > static_cast<std::size_t>(cast_segments_max)) {
    throw std::invalid_argument("a cast has 64 tensors at most");
  }
  CastPass pass{.from = from, .to = to};
  std::int64_t block = 0;
  for (const CastSegment& segment : segments) {
    pass.segments[pass.segment_count] = segment;
    block += (segment.count + chunk_elements - 1) / chunk_elements;
    if (block > 0x7fffffff) throw std::invalid_argument("a cast has 2^43 elements at most");
    pass.segment_count += 1;
    pass.first_block[pass.segment_count] = static_cast<std::int32_t>(block);
  }
  return pass;
}

// Which segment a block works on: the last one that begins at it or before. Those without elements
// begin where the next does.
DDPRUN_HOST_DEVICE inline std::int32_t cast_segment_of(const CastPass& pass, std::int64_t block) {
  std::int32_t begin = 0, end = pass.segment_count;
  while (end - begin > 1) {
    const std::int32_t middle = begin + (end - begin) / 2;
    if (pass.first_block[middle] <= block) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

DDPRUN_HOST_DEVICE inline void cast_vector(const CastPass& pass, const CastSegment& segment,
                                           std::int64_t vector) {
  float values[vector_numbers];
  load_numbers(segment.from, vector, pass.from, values);
  store_numbers(segment.to, vector, pass.to, values);
}

DDPRUN_HOST_DEVICE inline void cast_thread(const CastPass& pass, KernelPlace place) {
  const std::int32_t number = cast_segment_of(pass, place.block);
  const CastSegment& segment = pass.segments[number];
  const SegmentChunk chunk{(place.block - pass.first_block[number]) * chunk_elements, number};
  const auto element = [&](std::int64_t i) {
    store_number(segment.to, i, load_number(segment.from, i, pass.from), pass.to);
  };
  // Buckets place gradients so; a caller's own memory may begin anywhere.
  if (lies_at(segment.from, sizeof(VectorWords)) && lies_at(segment.to, sizeof(VectorWords))) {
    for_each_vector<vector_numbers>(
        chunk, segment.count, place,
        [&](std::int64_t i) { cast_vector(pass, segment, i / vector_numbers); }, element);
  } else {
    for_each_element(chunk, segment.count, place, element);
  }
}

}  // namespace ddprun::trainer
