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
    tools_ = make_tools();
  } else {
    prefetch_.emplace(batches_, options_.threads, [this]() -> Prefetch<Made>::Maker {
      // Of each thread its own: they hold decoders and buffers.
      return
          [this, tools = make_tools()](std::int64_t number) { return make_batch(number, *tools); };
    });
  }
}

std::optional<Batch> BatchLoader::next() {
  while (taken_ < batches_) {
    const std::int64_t number = taken_++;
    Made made = prefetch_ ? prefetch_->next() : make_batch(number, *tools_);
    skipped_.insert(skipped_.end(), made.skipped.begin(), made.skipped.end());
    if (!made.batch.indices.empty()) return std::move(made.batch);
  }
  return std::nullopt;
}

std::shared_ptr<BatchLoader::Tools> BatchLoader::make_tools() const {
  // Not by make_shared, which would have to move a maker.
  return std::shared_ptr<Tools>(
      new Tools{SampleMaker(dataset_, options_.sample),
                options_.make_decoder ? options_.make_decoder() : nullptr});
}

// Of a batch that the decoder gives back it made none: which file it stumbled over is not known.
BatchLoader::Made BatchLoader::make_batch(std::int64_t number, Tools& tools) const {
  Made made = make_batch(number, tools.maker, tools.decoder.get());
  if (!tools.decoder || made.batch.indices.empty() || tools.decoder->finish(made.batch)) {
    return made;
  }
  return make_batch(number, tools.maker, nullptr);
}

BatchLoader::Made BatchLoader::make_batch(std::int64_t number, SampleMaker& maker,
                                          BatchDecoder* decoder) const {
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
  if (decoder != nullptr) decoder->begin();
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
    TakeJpeg take;
    if (decoder != nullptr) {
      take = [&](auto file, ImageSize size, const SamplePlan& plan) {
        return decoder->take(made, file, size, plan);
      };
    }
    const auto sample = maker.make(indices_[static_cast<std::size_t>(i)], out + made * image_bytes,
                                   result.skipped, take);
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
