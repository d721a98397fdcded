// The plan of all samples of a pass is made on the host by the loader's own rule: 12 bytes each.
#include "trainer/device/resident_batches.h"

#include <algorithm>

#include "trainer/data/divide_up.h"
#include "trainer/data/normalize.h"
#include "trainer/kernels/device/on_device.h"

namespace ddprun::trainer {

namespace {

// Not from page-locked memory, which LibTorch would keep for ever: a set is copied once.
template <typename T>
torch::Tensor copy_to(torch::Device device, std::vector<T> values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  return torch::from_blob(values.data(), {bytes}, torch::kUInt8)
      .to(device, torch::kUInt8, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

ResidentSet::ResidentSet(const Dataset& dataset, const Normalization& normalization,
                         torch::Device device)
    : dataset_(dataset) {
  const NormalizationTable table(normalization);
  const float* const first = table.of_channel(0);
  pixels_ = copy_to(device, resident_pixels(dataset));
  labels_ = copy_to(device, resident_labels(dataset));
  table_ = upload(std::vector<float>(first, table.of_channel(dataset.shape().channels)), device);
}

GatherBatch ResidentSet::batch() const {
  const ImageShape shape = dataset_.shape();
  return {.pixels = pointer_to<const std::uint8_t>(pixels_),
          .labels = pointer_to<const std::int64_t>(labels_),
          .table = pointer_to<const float>(table_),
          .channels = static_cast<std::int32_t>(shape.channels),
          .height = static_cast<std::int32_t>(shape.height),
          .width = static_cast<std::int32_t>(shape.width)};
}

ResidentBatches::ResidentBatches(const ResidentSet& set, std::vector<std::int64_t> indices,
                                 std::int64_t batch_size, const SampleOptions& options)
    : set_(set),
      indices_(std::move(indices)),
      batch_size_(batch_size),
      channels_last_(options.channels_last),
      samples_(upload(resident_samples(set.dataset(), options, indices_), set.device())) {}

std::int64_t ResidentBatches::batches() const {
  return divide_up(std::ssize(indices_), batch_size_);
}

std::optional<Batch> ResidentBatches::next() {
  if (taken_ == batches()) return std::nullopt;
  const std::int64_t begin = taken_++ * batch_size_;
  const std::int64_t count = std::min(batch_size_, std::ssize(indices_) - begin);
  const ImageShape shape = set_.dataset().shape();
  const torch::TensorOptions there(set_.device());
  const auto layout =
      channels_last_ ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  Batch batch;
  batch.images = torch::empty({count, shape.channels, shape.height, shape.width}, there, layout);
  batch.labels = torch::empty({count}, there.dtype(torch::kInt64));
  batch.indices.assign(indices_.begin() + begin, indices_.begin() + begin + count);
  GatherBatch gathered = set_.batch();
  gathered.samples = pointer_to<const ResidentSample>(samples_) + begin;
  gathered.count = count;
  gathered.channels_last = channels_last_ ? 1 : 0;
  gathered.images = batch.images.data_ptr();
  gathered.batch_labels = batch.labels.data_ptr<std::int64_t>();
  const OnDevice on(set_.device());
  run_kernel(step_kernels(set_.device().is_cuda()).gather, gathered, on.stream());
  return batch;
}

}  // namespace ddprun::trainer
