// The tables of the kernel: gradients mostly lie where they lay in the step before, and then
// nothing is copied to the device.
#include "trainer/optimizer/fused_sgd.h"

#include <algorithm>
#include <stdexcept>

#include "trainer/kernels/device/on_device.h"

namespace ddprun::trainer {
namespace {

void check_slot(const FusedSgd::Slot& slot) {
  const auto lies = [&](const torch::Tensor& tensor) {
    return tensor.device() == slot.weight.device() && same_order(tensor, slot.weight) &&
           tensor.is_non_overlapping_and_dense();
  };
  const auto fits = [&](const torch::Tensor& tensor) {
    return tensor.scalar_type() == torch::kFloat32 && lies(tensor);
  };
  if (fits(slot.weight) && fits(slot.gradient) &&
      (!slot.momentum.defined() || fits(slot.momentum)) &&
      (!slot.copy.defined() || lies(slot.copy))) {
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
         a.copy == b.copy && a.count == b.count && a.decay == b.decay && a.fresh == b.fresh;
}

// Whatever where there are none.
NumberFormat format_of_copies(const std::vector<FusedSgd::Slot>& slots) {
  const auto with_copy = std::find_if(
      slots.begin(), slots.end(), [](const FusedSgd::Slot& slot) { return slot.copy.defined(); });
  return with_copy == slots.end() ? NumberFormat::BFloat16 : number_format_of(with_copy->copy);
}

// The chunks of both are the same.
bool same_counts(const std::vector<SgdSegment>& a, const std::vector<SgdSegment>& b) {
  const auto same = [](const SgdSegment& x, const SgdSegment& y) { return x.count == y.count; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
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

const FusedSgd::Tables& FusedSgd::describe(const std::vector<Slot>& slots, torch::Device device) {
  std::vector<SgdSegment> segments;
  std::vector<std::int64_t> counts;
  segments.reserve(slots.size());
  for (const Slot& slot : slots) {
    check_slot(slot);
    segments.push_back(
        {.weight = slot.weight.data_ptr<float>(),
         .gradient = slot.gradient.data_ptr<float>(),
         .momentum = slot.momentum.defined() ? slot.momentum.data_ptr<float>() : nullptr,
         .copy = slot.copy.defined() ? slot.copy.data_ptr() : nullptr,
         .count = slot.weight.numel(),
         .decay = static_cast<float>(slot.decay),
         .fresh = slot.first_step ? 1 : 0});
    counts.push_back(slot.weight.numel());
  }
  if (recording_) {
    if (!same_counts(segments, recorded_.segments)) {
      throw std::logic_error(
          "a step is recorded that updates other parameters than the one before");
    }
    recorded_.segments = std::move(segments);
    return recorded_;
  }
  const std::vector<SgdSegment>& known = tables_.segments;
  if (std::equal(segments.begin(), segments.end(), known.begin(), known.end(), equal)) {
    return tables_;
  }
  const std::vector<SegmentChunk> chunks = chunks_of(counts);
  tables_.segments = std::move(segments);
  tables_.segment_table = upload(tables_.segments, device);
  tables_.chunk_table = upload(chunks, device);
  tables_.chunk_count = static_cast<std::int64_t>(chunks.size());
  return tables_;
}

void FusedSgd::begin_recording() {
  if (tables_.segments.empty()) throw std::logic_error("no step was done before the recorded one");
  recorded_ = tables_;
  // Zeros: of segments without elements a pass does nothing.
  recorded_.segment_table = torch::zeros_like(tables_.segment_table);
  recording_ = true;
}

void FusedSgd::end_recording() {
  recording_ = false;
  recorded_.segment_table.copy_(upload(recorded_.segments, recorded_.segment_table.device()));
}

SgdPass FusedSgd::step(const std::vector<Slot>& slots, const Rule& rule,
                       const torch::Tensor& loss_scale) {
  if (slots.empty()) return {};
  const torch::Device device = slots.front().weight.device();
  const OnDevice on(device);
  const Tables& tables = describe(slots, device);
  auto* const scale = loss_scale.defined() ? pointer_to<LossScale>(loss_scale) : nullptr;
  const SgdPass pass{.segments = pointer_to<const SgdSegment>(tables.segment_table),
                     .chunks = pointer_to<const SegmentChunk>(tables.chunk_table),
                     .chunk_count = tables.chunk_count,
                     .scale = scale,
                     .learning_rate_at = rule.learning_rate_at,
                     .learning_rate = static_cast<float>(rule.learning_rate),
                     .momentum = static_cast<float>(rule.momentum),
                     .nesterov = rule.nesterov ? 1 : 0,
                     .copy_format = format_of_copies(slots)};
  const StepKernels& kernels = step_kernels(device.is_cuda());
  // A pass of its own before: the last gradient may be the one that is not finite, and by then the
  // first weights would have changed.
  if (scale != nullptr) run_kernel(kernels.find_overflow, pass, scale, on.stream());
  run_kernel(kernels.sgd, pass, on.stream());
  if (scale != nullptr) run_kernel(kernels.advance_scale, scale, LossScaleRule{}, on.stream());
  return pass;
}

}  // namespace ddprun::trainer
