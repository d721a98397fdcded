// Where samples become tensors: rooms below this know no LibTorch, the loop above no images.
#include "trainer/data/batch_loader.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "trainer/data/divide_up.h"
#include "worker/torch/choose_device.h"

namespace ddprun::trainer {
namespace {

LoaderOptions with_defaults(LoaderOptions options, const Dataset& dataset) {
  SampleOptions& sample = options.sample;
  if (sample.normalization.mean.empty()) sample.normalization = dataset.normalization();
  if (sample.transform.side == 0) sample.transform.side = dataset.shape().height;
  if (sample.transform.resize_side == 0) sample.transform.resize_side = sample.transform.side;
  if (options.part_size == 0 || options.threads == 0) options.part_size = options.batch_size;
  return options;
}

// What a thread made on a GPU lies in memory of that thread's stream, which would have it back
// while the caller's stream, steps behind the host, has still to read it.
void keep_until_read(const torch::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const torch::Device device = tensor.device();
  tensor.record_stream(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void add_to(std::vector<SkippedImage>& all, const std::vector<SkippedImage>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

BatchLoader::BatchLoader(const Dataset& dataset, std::vector<std::int64_t> indices,
                         LoaderOptions options)
    : dataset_(dataset),
      indices_(std::move(indices)),
      options_(with_defaults(std::move(options), dataset)),
      batches_(divide_up(std::ssize(indices_), options_.batch_size)),
      parts_per_batch_(divide_up(options_.batch_size, options_.part_size)) {
  if (options_.threads == 0) {
    tools_ = make_tools();
  } else {
    const std::int64_t parts =
        std::ssize(indices_) / options_.batch_size * parts_per_batch_ +
        divide_up(std::ssize(indices_) % options_.batch_size, options_.part_size);
    prefetch_.emplace(parts, options_.threads, [this]() -> Prefetch<Made>::Maker {
      worker::choose_device(options_.device);
      // Of each thread its own: they hold decoders and buffers.
      return
          [this, tools = make_tools()](std::int64_t number) { return make_part(number, *tools); };
    });
  }
}

std::optional<Batch> BatchLoader::next() {
  while (taken_ < batches_) {
    const std::int64_t number = taken_++;
    Made made = prefetch_ ? take_parts(images_of(number)) : make_part(number, *tools_);
    add_to(skipped_, made.skipped);
    if (!made.batch.indices.empty()) return std::move(made.batch);
  }
  return std::nullopt;
}

std::int64_t BatchLoader::images_of(std::int64_t batch) const {
  return std::min(options_.batch_size, std::ssize(indices_) - batch * options_.batch_size);
}

// One after the other, so that beside the batch no more of them are held than the threads have made
// ahead.
BatchLoader::Made BatchLoader::take_parts(std::int64_t images) {
  const std::int64_t parts = divide_up(images, options_.part_size);
  if (parts == 1) return prefetch_->next();
  Made whole;
  Batch& batch = whole.batch;
  std::int64_t filled = 0;
  for (std::int64_t i = 0; i < parts; ++i) {
    const Made part = prefetch_->next();
    add_to(whole.skipped, part.skipped);
    const std::int64_t count = std::ssize(part.batch.indices);
    if (count == 0) continue;
    if (filled == 0) batch = room_for(images, part.batch);
    batch.images.narrow(0, filled, count).copy_(part.batch.images);
    keep_until_read(part.batch.images);
    batch.labels.narrow(0, filled, count).copy_(part.batch.labels);
    batch.indices.insert(batch.indices.end(), part.batch.indices.begin(), part.batch.indices.end());
    filled += count;
  }
  if (filled > 0 && filled < images) {
    batch.images = batch.images.narrow(0, 0, filled);
    batch.labels = batch.labels.narrow(0, 0, filled);
  }
  return whole;
}

Batch BatchLoader::room_for(std::int64_t images, const Batch& part) const {
  const auto memory_of = [this](const torch::Tensor& tensor) {
    return tensor.options().pinned_memory(options_.device.is_cuda() && tensor.is_cpu());
  };
  std::vector<std::int64_t> sizes = part.images.sizes().vec();
  sizes[0] = images;
  const auto layout = part.images.suggest_memory_format();
  return {.images = torch::empty(sizes, memory_of(part.images), layout),
          .labels = torch::empty({images}, memory_of(part.labels))};
}

std::shared_ptr<BatchLoader::Tools> BatchLoader::make_tools() const {
  // Not by make_shared, which would have to move a maker.
  return std::shared_ptr<Tools>(
      new Tools{SampleMaker(dataset_, options_.sample),
                options_.make_decoder ? options_.make_decoder() : nullptr});
}

// Of a part that the decoder gives back it made none: which file it stumbled over is not known.
BatchLoader::Made BatchLoader::make_part(std::int64_t number, Tools& tools) const {
  Made made = make_part(number, tools.maker, tools.decoder.get());
  if (!tools.decoder || made.batch.indices.empty() || tools.decoder->finish(made.batch)) {
    return made;
  }
  return make_part(number, tools.maker, nullptr);
}

BatchLoader::Made BatchLoader::make_part(std::int64_t number, SampleMaker& maker,
                                         BatchDecoder* decoder) const {
  const std::int64_t before = number % parts_per_batch_ * options_.part_size;  // In its batch.
  const std::int64_t begin = number / parts_per_batch_ * options_.batch_size + before;
  const std::int64_t count =
      std::min({options_.part_size, options_.batch_size - before, std::ssize(indices_) - begin});
  const std::int64_t channels = dataset_.shape().channels;
  const std::int64_t side = options_.sample.transform.side;
  const auto layout = options_.sample.channels_last ? torch::MemoryFormat::ChannelsLast
                                                    : torch::MemoryFormat::Contiguous;
  // New memory for each part: malloc keeps what a part gave back (see tune_process()), and
  // LibTorch knows until when a copy to a GPU needs the page-locked kind.
  const auto memory = torch::TensorOptions().pinned_memory(options_.device.is_cuda());
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
