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
#include <cstddef>
#include <cstdint>

#include "trainer/kernels/device/number_format.h"
#include "trainer/kernels/device/number_vector.h"
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

// What is the same for all elements of a parameter.
struct SgdRule {
  float rate = 0;
  float unscale = 1;
  float decay = 0;
  float momentum = 0;
  float dampening = 0;
  bool has_momentum = false;
  bool fresh = false;
  bool nesterov = false;
};

DDPRUN_HOST_DEVICE inline SgdRule sgd_rule(const SgdPass& pass, const SgdSegment& segment) {
  return {.rate = pass.learning_rate_at != nullptr ? *pass.learning_rate_at : pass.learning_rate,
          .unscale = pass.scale != nullptr ? pass.scale->inverse : 1.0F,
          .decay = segment.decay,
          .momentum = pass.momentum,
          .dampening = pass.dampening,
          .has_momentum = segment.momentum != nullptr,
          .fresh = segment.fresh != 0,
          .nesterov = pass.nesterov != 0};
}

// Of one element.
DDPRUN_HOST_DEVICE inline void sgd_update(const SgdRule& rule, float gradient, float& weight,
                                          float& velocity) {
  float update = gradient * rule.unscale;
  if (rule.decay != 0) update = fmaf(rule.decay, weight, update);
  if (rule.has_momentum) {
    velocity = rule.fresh ? update : fmaf(rule.momentum, velocity, (1 - rule.dampening) * update);
    update = rule.nesterov ? fmaf(rule.momentum, velocity, update) : velocity;
  }
  weight = fmaf(-rule.rate, update, weight);
}

DDPRUN_HOST_DEVICE inline void sgd_element(const SgdPass& pass, const SgdSegment& segment,
                                           const SgdRule& rule, std::int64_t i) {
  float weight = segment.weight[i];
  float velocity = rule.has_momentum && !rule.fresh ? segment.momentum[i] : 0.0F;
  sgd_update(rule, segment.gradient[i], weight, velocity);
  segment.weight[i] = weight;
  if (rule.has_momentum) segment.momentum[i] = velocity;
  if (segment.copy != nullptr) store_number(segment.copy, i, weight, pass.copy_format);
}

// Four float32 side by side, which a thread reads or writes at once; and their copies.
struct alignas(16) FloatQuad {
  float of[4];
};
struct alignas(8) Quad16 {
  std::uint16_t of[4];
};

DDPRUN_HOST_DEVICE inline void sgd_quad(const SgdPass& pass, const SgdSegment& segment,
                                        const SgdRule& rule, std::int64_t quad) {
  auto* const weights = reinterpret_cast<FloatQuad*>(segment.weight);
  auto* const momenta = reinterpret_cast<FloatQuad*>(segment.momentum);
  FloatQuad weight = weights[quad];
  const FloatQuad gradient = reinterpret_cast<const FloatQuad*>(segment.gradient)[quad];
  FloatQuad velocity = rule.has_momentum && !rule.fresh ? momenta[quad] : FloatQuad{};
  for (int k = 0; k < 4; ++k) sgd_update(rule, gradient.of[k], weight.of[k], velocity.of[k]);
  weights[quad] = weight;
  if (rule.has_momentum) momenta[quad] = velocity;
  if (segment.copy == nullptr) return;
  if (pass.copy_format == NumberFormat::Float32) {
    static_cast<FloatQuad*>(segment.copy)[quad] = weight;
  } else {
    Quad16 copy;
    for (int k = 0; k < 4; ++k) copy.of[k] = narrow16(weight.of[k], pass.copy_format);
    static_cast<Quad16*>(segment.copy)[quad] = copy;
  }
}

DDPRUN_HOST_DEVICE inline void sgd_thread(const SgdPass& pass, KernelPlace place) {
  if (pass.scale != nullptr && pass.scale->overflow != 0) return;
  const SegmentChunk chunk = pass.chunks[place.block];
  const SgdSegment segment = pass.segments[chunk.segment];
  const SgdRule rule = sgd_rule(pass, segment);
  const auto element = [&](std::int64_t i) { sgd_element(pass, segment, rule, i); };
  constexpr std::size_t whole = sizeof(FloatQuad);
  // Buckets place gradients so; a caller's own memory may begin anywhere.
  if (lies_at(segment.weight, whole) && lies_at(segment.gradient, whole) &&
      lies_at(segment.momentum, whole) && lies_at(segment.copy, whole)) {
    for_each_vector<4>(
        chunk, segment.count, place, [&](std::int64_t i) { sgd_quad(pass, segment, rule, i / 4); },
        element);
  } else {
    for_each_element(chunk, segment.count, place, element);
  }
}

// Sets `overflow` if a gradient is not finite. Who of several threads writes the 1 does not matter.
DDPRUN_HOST_DEVICE inline void overflow_thread(const SgdPass& pass, LossScale* scale,
                                               KernelPlace place) {
  const SegmentChunk chunk = pass.chunks[place.block];
  const SgdSegment segment = pass.segments[chunk.segment];
  bool finite = true;
  const auto look_at = [&](float gradient) {
    // Of a NaN every comparison is false.
    if (!(fabsf(gradient) <= 3.402823466e+38F)) finite = false;
  };
  const auto element = [&](std::int64_t i) { look_at(segment.gradient[i]); };
  if (lies_at(segment.gradient, sizeof(FloatQuad))) {
    for_each_vector<4>(
        chunk, segment.count, place,
        [&](std::int64_t i) {
          const FloatQuad quad = reinterpret_cast<const FloatQuad*>(segment.gradient)[i / 4];
          for (int k = 0; k < 4; ++k) look_at(quad.of[k]);
        },
        element);
  } else {
    for_each_element(chunk, segment.count, place, element);
  }
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
