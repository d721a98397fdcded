// One pass of SGD over all parameters of a model, and what float16 needs around it: whether every
// gradient is finite, and the next loss scale, without the host having to know either.
//
//   g <- gradient / scale + decay * w;   v <- momentum * v + (1 - dampening) * g  (v = g at first);
//   w <- w - lr * v      or, with nesterov,   w <- w - lr * (g + momentum * v);      copy <- w
//
// The rule of torch.optim.SGD, in the same order. Products are added by fused multiply-add, named
// as such, so that the device and the host's loops come to the same bits.
// A core: no sockets, threads or clock.
#pragma once

#include <cmath>
#include <cstdint>

#include "trainer/kernels/device/number_format.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

// A parameter. All of it in the device's memory, and dense in one order.
struct SgdSegment {
  float* weight = nullptr;
  const float* gradient = nullptr;
  float* momentum = nullptr;  // Null without momentum.
  void* copy = nullptr;       // In SgdPass::copy_format; null: none is kept.
  std::int64_t count = 0;
  float decay = 0;
  std::int32_t fresh = 0;  // 1: its first step, in which the momentum is written and not read.
};

// torch.amp.GradScaler's state, in the device's memory.
struct LossScale {
  float scale = 65536;
  float inverse = 1.0F / 65536;
  std::int32_t overflow = 0;  // 1: a gradient of this step is not finite.
  std::int32_t growth_steps = 0;
  std::int32_t skipped_in_a_row = 0;
  std::int32_t skipped = 0;
};

struct SgdPass {
  const SgdSegment* segments = nullptr;
  const SegmentChunk* chunks = nullptr;
  std::int64_t chunk_count = 0;
  const LossScale* scale = nullptr;  // Null: gradients are as they are. A step with overflow: none.
  const float* learning_rate_at = nullptr;  // On the device, so that a graph sees it change; or
  float learning_rate = 0;                  // this where it is null.
  float momentum = 0;
  float dampening = 0;
  std::int32_t nesterov = 0;
  NumberFormat copy_format = NumberFormat::BFloat16;
};

DDPRUN_HOST_DEVICE inline void sgd_element(const SgdPass& pass, const SgdSegment& segment,
                                           float rate, float unscale, std::int64_t i) {
  const float weight = segment.weight[i];
  float update = segment.gradient[i] * unscale;
  if (segment.decay != 0) update = fmaf(segment.decay, weight, update);
  if (segment.momentum != nullptr) {
    const float velocity = segment.fresh != 0 ? update
                                              : fmaf(pass.momentum, segment.momentum[i],
                                                     (1 - pass.dampening) * update);
    segment.momentum[i] = velocity;
    update = pass.nesterov != 0 ? fmaf(pass.momentum, velocity, update) : velocity;
  }
  const float next = fmaf(-rate, update, weight);
  segment.weight[i] = next;
  if (segment.copy != nullptr) store_number(segment.copy, i, next, pass.copy_format);
}

DDPRUN_HOST_DEVICE inline void sgd_thread(const SgdPass& pass, KernelPlace place) {
  if (pass.scale != nullptr && pass.scale->overflow != 0) return;
  const SegmentChunk chunk = pass.chunks[place.block];
  const SgdSegment segment = pass.segments[chunk.segment];
  const float rate = pass.learning_rate_at != nullptr ? *pass.learning_rate_at : pass.learning_rate;
  const float unscale = pass.scale != nullptr ? pass.scale->inverse : 1.0F;
  for_each_element(chunk, segment.count, place,
                   [&](std::int64_t i) { sgd_element(pass, segment, rate, unscale, i); });
}

// Sets `overflow` if a gradient is not finite. Who of several threads writes the 1 does not matter.
DDPRUN_HOST_DEVICE inline void overflow_thread(const SgdPass& pass, LossScale* scale,
                                               KernelPlace place) {
  const SegmentChunk chunk = pass.chunks[place.block];
  const SgdSegment segment = pass.segments[chunk.segment];
  bool finite = true;
  for_each_element(chunk, segment.count, place, [&](std::int64_t i) {
    // Of a NaN every comparison is false.
    if (!(fabsf(segment.gradient[i]) <= 3.402823466e+38F)) finite = false;
  });
  if (!finite) scale->overflow = 1;
}

struct LossScaleRule {
  float growth_factor = 2;
  float backoff_factor = 0.5;
  std::int32_t growth_interval = 2000;
};

// After the step: what LossScaler::decide() does with its answer, in the same arithmetic.
DDPRUN_HOST_DEVICE inline void advance_loss_scale(LossScale& state, const LossScaleRule& rule) {
  if (state.overflow != 0) {
    state.scale *= rule.backoff_factor;
    state.growth_steps = 0;
    state.skipped_in_a_row += 1;
    state.skipped += 1;
  } else {
    state.skipped_in_a_row = 0;
    state.growth_steps += 1;
    if (state.growth_steps == rule.growth_interval) {
      state.growth_steps = 0;
      const float grown = state.scale * rule.growth_factor;
      if (grown <= 3.402823466e+38F) state.scale = grown;
    }
  }
  state.overflow = 0;
  state.inverse = static_cast<float>(1.0 / static_cast<double>(state.scale));
}

}  // namespace ddprun::trainer
