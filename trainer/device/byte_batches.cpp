// Two streams and what each waits for: neither reads memory that the other has not written, nor
// writes what it has not read.
#include "trainer/device/byte_batches.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "trainer/data/normalize.h"
#include "trainer/device/stream_beside.h"
#include "trainer/kernels/device/on_device.h"

namespace ddprun::trainer {
namespace {

LoaderOptions of_bytes(LoaderOptions options) {
  options.sample.bytes = true;
  return options;
}

c10::Stream current_stream_of(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

torch::Tensor table_on(torch::Device device, const Normalization& normalization) {
  const NormalizationTable table(normalization);
  const auto channels = static_cast<std::int64_t>(normalization.mean.size());
  return upload(std::vector<float>(table.of_channel(0), table.of_channel(channels)), device);
}

}  // namespace

ByteBatches::ByteBatches(const Dataset& dataset, std::vector<std::int64_t> indices,
                         const LoaderOptions& options, torch::Device device)
    : dataset_(dataset),
      device_(device),
      channels_last_(options.sample.channels_last),
      table_(table_on(device, options.sample.normalization)),
      loader_(dataset, std::move(indices), of_bytes(options)) {
  if (!device.is_cpu()) {
    // A tensor's device always has an index: is_there() compares with that.
    TORCH_CHECK_VALUE(device.has_index(), "ByteBatches: ", device, " does not say which one");
    copies_ = stream_beside(current_stream_of(device));
  }
  for (Slot& slot : slots_) slot = make_slot(options);
}

ByteBatches::Slot ByteBatches::make_slot(const LoaderOptions& options) const {
  const torch::TensorOptions there(device_);
  const std::int64_t side = options.sample.transform.side;
  const auto layout =
      channels_last_ ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  Slot slot{torch::empty({options.batch_size, dataset_.shape().channels, side, side},
                         there.dtype(torch::kUInt8), layout),
            torch::empty({options.batch_size}, there.dtype(torch::kInt64)),
            {},
            {}};
  if (!copies_) return slot;
  slot.copied.emplace(device_.type());
  slot.read.emplace(device_.type());
  // Whatever had this memory before has used it on the current stream.
  slot.read->record(current_stream_of(device_));
  return slot;
}

std::optional<Batch> ByteBatches::next() {
  std::optional<Batch> batch = loader_.next();
  if (!batch) return batch;
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  copy_to(slot, *batch);
  return take_from(slot, std::move(*batch));
}

// On a CPU nothing is: there the copies are tests of themselves.
bool ByteBatches::is_there(const Batch& batch) const {
  return copies_ && batch.images.device() == device_;
}

void ByteBatches::copy_to(Slot& slot, const Batch& batch) {
  std::optional<c10::StreamGuard> on;
  if (copies_) {
    slot.read->block(*copies_);
    on.emplace(*copies_);
  }
  const std::int64_t count = batch.labels.size(0);
  if (!is_there(batch)) {
    slot.bytes.narrow(0, 0, count).copy_(batch.images, /*non_blocking=*/true);
  }
  slot.labels.narrow(0, 0, count).copy_(batch.labels, /*non_blocking=*/true);
  if (copies_) slot.copied->record(*copies_);
}

Batch ByteBatches::take_from(Slot& slot, Batch batch) const {
  if (copies_) slot.copied->block(current_stream_of(device_));
  const std::int64_t count = batch.labels.size(0);
  torch::Tensor bytes = slot.bytes.narrow(0, 0, count);
  if (is_there(batch)) {
    bytes = batch.images;
    // The decoder's stream may have its memory again when this one has read it.
    bytes.record_stream(current_stream_of(device_));
  }
  // The slot's next batch may come before the step has used this one's labels.
  batch.labels = slot.labels.narrow(0, 0, count).clone();
  batch.images = torch::empty_like(bytes, torch::dtype(torch::kFloat32));
  const NormalizeBatch normalized{.bytes = bytes.data_ptr<std::uint8_t>(),
                                  .table = pointer_to<const float>(table_),
                                  .images = batch.images.data_ptr<float>(),
                                  .elements = bytes.numel(),
                                  .plane = bytes.size(2) * bytes.size(3),
                                  .channels = static_cast<std::int32_t>(bytes.size(1)),
                                  .channels_last = channels_last_ ? 1 : 0};
  const OnDevice on(device_);
  run_kernel(step_kernels(device_.is_cuda()).normalize, normalized, on.stream());
  if (copies_) slot.read->record(current_stream_of(device_));
  return batch;
}

}  // namespace ddprun::trainer
