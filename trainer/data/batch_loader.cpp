// Where samples become tensors: rooms below this know no LibTorch, the loop above no images.
#include "trainer/data/batch_loader.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace ddprun::trainer {
namespace {

LoaderOptions with_defaults(LoaderOptions options, const Dataset& dataset) {
  SampleOptions& sample = options.sample;
  if (sample.normalization.mean.empty()) sample.normalization = dataset.normalization();
  if (sample.transform.side == 0) sample.transform.side = dataset.shape().height;
  if (sample.transform.resize_side == 0) sample.transform.resize_side = sample.transform.side;
  return options;
}

}  // namespace

BatchLoader::BatchLoader(const Dataset& dataset, std::vector<std::int64_t> indices,
                         LoaderOptions options)
    : dataset_(dataset),
      indices_(std::move(indices)),
      options_(with_defaults(std::move(options), dataset)),
      batches_((static_cast<std::int64_t>(indices_.size()) + options_.batch_size - 1) /
               options_.batch_size) {
  if (options_.threads == 0) {
    maker_.emplace(dataset_, options_.sample);
  } else {
    prefetch_.emplace(batches_, options_.threads, [this]() -> Prefetch<Made>::Maker {
      // One maker per thread: it holds a decoder and buffers. Shared, as a std::function must be
      // copyable.
      const auto maker = std::make_shared<SampleMaker>(dataset_, options_.sample);
      return [this, maker](std::int64_t number) { return make_batch(number, *maker); };
    });
  }
}

std::optional<Batch> BatchLoader::next() {
  while (taken_ < batches_) {
    const std::int64_t number = taken_++;
    Made made = prefetch_ ? prefetch_->next() : make_batch(number, *maker_);
    skipped_.insert(skipped_.end(), made.skipped.begin(), made.skipped.end());
    if (!made.batch.indices.empty()) return std::move(made.batch);
  }
  return std::nullopt;
}

BatchLoader::Made BatchLoader::make_batch(std::int64_t number, SampleMaker& maker) const {
  const std::int64_t begin = number * options_.batch_size;
  const std::int64_t count =
      std::min(options_.batch_size, static_cast<std::int64_t>(indices_.size()) - begin);
  const std::int64_t channels = dataset_.shape().channels;
  const std::int64_t side = options_.sample.transform.side;
  const auto layout = options_.sample.channels_last ? torch::MemoryFormat::ChannelsLast
                                                    : torch::MemoryFormat::Contiguous;
  // New memory for each batch: malloc keeps what a batch gave back (see tune_process()), and
  // LibTorch knows until when a copy to a GPU needs the page-locked kind.
  const auto memory = torch::TensorOptions().pinned_memory(options_.pinned);
  Made result;
  Batch& batch = result.batch;
  const auto type = options_.sample.bytes ? torch::kUInt8 : torch::kFloat32;
  batch.images = torch::empty({count, channels, side, side}, memory.dtype(type), layout);
  batch.labels = torch::empty({count}, memory.dtype(torch::kInt64));
  auto* const out = static_cast<std::uint8_t*>(batch.images.data_ptr());
  const std::int64_t image_bytes = channels * side * side * batch.images.element_size();
  std::int64_t* labels = batch.labels.data_ptr<std::int64_t>();
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const auto made = static_cast<std::int64_t>(batch.indices.size());
    const auto sample =
        maker.make(indices_[static_cast<std::size_t>(i)], out + made * image_bytes, result.skipped);
    if (!sample) continue;
    labels[made] = sample->label;
    batch.indices.push_back(sample->index);
  }
  if (const auto made = static_cast<std::int64_t>(batch.indices.size()); made < count) {
    batch.images = batch.images.narrow(0, 0, made);
    batch.labels = batch.labels.narrow(0, 0, made);
  }
  return result;
}

}  // namespace ddprun::trainer
