// Many tensors from one number format into another in one launch, where LibTorch has one for each:
// the 161 parameters of a ResNet-50, say. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>

#include "trainer/kernels/device/number_format.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

struct CastSegment {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t count = 0;
};

struct CastPass {
  const CastSegment* segments = nullptr;
  const SegmentChunk* chunks = nullptr;
  std::int64_t chunk_count = 0;
  NumberFormat from = NumberFormat::Float32;
  NumberFormat to = NumberFormat::BFloat16;
};

DDPRUN_HOST_DEVICE inline void cast_thread(const CastPass& pass, KernelPlace place) {
  const SegmentChunk chunk = pass.chunks[place.block];
  const CastSegment segment = pass.segments[chunk.segment];
  for_each_element(chunk, segment.count, place, [&](std::int64_t i) {
    store_number(segment.to, i, load_number(segment.from, i, pass.from), pass.to);
  });
}

}  // namespace ddprun::trainer
