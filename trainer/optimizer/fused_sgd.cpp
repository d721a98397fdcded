// The tables of the kernel: gradients mostly lie where they lay in the step before, and then
// nothing is copied to the device.
#include "trainer/optimizer/fused_sgd.h"

#include <algorithm>
#include <stdexcept>

#include "trainer/kernels/device/on_device.h"

namespace ddprun::trainer {
namespace {

void check_slot(const FusedSgd::Slot& slot) {
  const auto fits = [&](const torch::Tensor& tensor) {
    return tensor.scalar_type() == torch::kFloat32 && tensor.device() == slot.weight.device() &&
           same_order(tensor, slot.weight) && tensor.is_non_overlapping_and_dense();
  };
  if (fits(slot.weight) && fits(slot.gradient) &&
      (!slot.momentum.defined() || fits(slot.momentum))) {
    return;
  }
  throw std::invalid_argument(
      "the fused optimizer walks over float32 memory of one order, and was given a weight " +
      slot.weight.toString() + " on " + slot.weight.device().str() + " with a gradient " +
      slot.gradient.toString() + " on " + slot.gradient.device().str() +
      ", or of other strides: give --no-fused-optimizer");
}

bool equal(const SgdSegment& a, const SgdSegment& b) {
  return a.weight == b.weight && a.gradient == b.gradient && a.momentum == b.momentum &&
         a.count == b.count && a.decay == b.decay && a.fresh == b.fresh;
}

}  // namespace

bool same_order(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  // The stride of a side of length 1 says nothing: 1 x 1 convolutions have weights and gradients
  // that differ in nothing else, and must not be copied for it.
  for (std::int64_t side = 0; side < a.dim(); ++side) {
    if (a.size(side) > 1 && a.stride(side) != b.stride(side)) return false;
  }
  return true;
}

void FusedSgd::describe(const std::vector<Slot>& slots, torch::Device device) {
  std::vector<SgdSegment> segments;
  std::vector<std::int64_t> counts;
  segments.reserve(slots.size());
  for (const Slot& slot : slots) {
    check_slot(slot);
    segments.push_back(
        {.weight = slot.weight.data_ptr<float>(),
         .gradient = slot.gradient.data_ptr<float>(),
         .momentum = slot.momentum.defined() ? slot.momentum.data_ptr<float>() : nullptr,
         .count = slot.weight.numel(),
         .decay = static_cast<float>(slot.decay),
         .fresh = slot.first_step ? 1 : 0});
    counts.push_back(slot.weight.numel());
  }
  if (std::equal(segments.begin(), segments.end(), segments_.begin(), segments_.end(), equal)) {
    return;
  }
  const std::vector<SegmentChunk> chunks = chunks_of(counts);
  segments_ = std::move(segments);
  segment_table_ = upload(segments_, device);
  chunk_table_ = upload(chunks, device);
  chunk_count_ = static_cast<std::int64_t>(chunks.size());
}

void FusedSgd::step(const std::vector<Slot>& slots, const Rule& rule,
                    const torch::Tensor& loss_scale) {
  if (slots.empty()) return;
  const torch::Device device = slots.front().weight.device();
  const OnDevice on(device);
  describe(slots, device);
  auto* const scale = loss_scale.defined() ? pointer_to<LossScale>(loss_scale) : nullptr;
  const SgdPass pass{.segments = pointer_to<const SgdSegment>(segment_table_),
                     .chunks = pointer_to<const SegmentChunk>(chunk_table_),
                     .chunk_count = chunk_count_,
                     .scale = scale,
                     .learning_rate = static_cast<float>(rule.learning_rate),
                     .momentum = static_cast<float>(rule.momentum),
                     .nesterov = rule.nesterov ? 1 : 0};
  const StepKernels& kernels = step_kernels(device.is_cuda());
  // A pass of its own before: the last gradient may be the one that is not finite, and by then the
  // first weights would have changed.
  if (scale != nullptr) run_kernel(kernels.find_overflow, pass, scale, on.stream());
  run_kernel(kernels.sgd, pass, on.stream());
  if (scale != nullptr) run_kernel(kernels.advance_scale, scale, LossScaleRule{}, on.stream());
}

}  // namespace ddprun::trainer
