// See batch_loader.h.
#include "trainer/data/batch_loader.h"

#include <algorithm>
#include <utility>

namespace ddprun::trainer {
namespace {

constexpr std::size_t batches_ahead_per_thread = 2;

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
  if (options_.threads == 0) maker_.emplace(dataset_, options_.sample);
  slots_.resize(std::max<std::size_t>(
      1, batches_ahead_per_thread * static_cast<std::size_t>(options_.threads)));
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { run_thread(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  slot_freed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::optional<Batch> BatchLoader::next() {
  while (taken_ < batches_) {
    Made made = next_made();
    skipped_.insert(skipped_.end(), made.skipped.begin(), made.skipped.end());
    if (!made.batch.indices.empty()) return std::move(made.batch);
  }
  return std::nullopt;
}

BatchLoader::Made BatchLoader::next_made() {
  if (threads_.empty()) return make_batch(taken_++, *maker_);
  Slot slot;
  {
    std::unique_lock lock(mutex_);
    Slot& wanted = slot_of(taken_);
    slot_filled_.wait(lock, [&] { return wanted.made || wanted.error; });
    slot = std::exchange(wanted, Slot{});
    ++taken_;
  }
  slot_freed_.notify_all();
  if (slot.error) std::rethrow_exception(slot.error);
  return std::move(*slot.made);
}

// A batch may be begun once its slot's last user was taken; so the loop sees them in order.
void BatchLoader::run_thread() {
  std::optional<SampleMaker> maker;
  std::unique_lock lock(mutex_);
  for (;;) {
    slot_freed_.wait(lock, [&] {
      return stopping_ || claimed_ == batches_ ||
             claimed_ < taken_ + static_cast<std::int64_t>(slots_.size());
    });
    if (stopping_ || claimed_ == batches_) return;
    const std::int64_t number = claimed_++;
    lock.unlock();
    Slot slot;
    try {
      if (!maker) maker.emplace(dataset_, options_.sample);
      slot.made = make_batch(number, *maker);
    } catch (...) {
      slot.error = std::current_exception();
    }
    lock.lock();
    slot_of(number) = std::move(slot);
    slot_filled_.notify_one();
  }
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
  batch.images = torch::empty({count, channels, side, side}, memory, layout);
  batch.labels = torch::empty({count}, memory.dtype(torch::kInt64));
  float* out = batch.images.data_ptr<float>();
  std::int64_t* labels = batch.labels.data_ptr<std::int64_t>();
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const auto made = static_cast<std::int64_t>(batch.indices.size());
    const auto sample = maker.make(indices_[static_cast<std::size_t>(i)],
                                   out + made * channels * side * side, result.skipped);
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
