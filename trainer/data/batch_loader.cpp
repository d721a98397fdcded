// See batch_loader.h.
#include "trainer/data/batch_loader.h"

#include <algorithm>
#include <utility>

namespace ddprun::trainer {
namespace {

constexpr std::size_t batches_ahead_per_thread = 2;

}  // namespace

BatchLoader::BatchLoader(const Dataset& dataset, std::vector<std::int64_t> indices,
                         LoaderOptions options)
    : dataset_(dataset),
      indices_(std::move(indices)),
      options_(options),
      batches_((static_cast<std::int64_t>(indices_.size()) + options.batch_size - 1) /
               options.batch_size) {
  const Normalization normalization = dataset_.normalization();
  for (std::int64_t channel = 0; channel < dataset_.shape().channels; ++channel) {
    const auto c = static_cast<std::size_t>(channel);
    for (int byte = 0; byte < 256; ++byte) {
      normalized_.push_back((static_cast<float>(byte) / 255.0F - normalization.mean[c]) /
                            normalization.deviation[c]);
    }
  }
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
  if (taken_ == batches_) return std::nullopt;
  if (threads_.empty()) return make_batch(taken_++);
  Slot slot;
  {
    std::unique_lock lock(mutex_);
    Slot& wanted = slot_of(taken_);
    slot_filled_.wait(lock, [&] { return wanted.batch || wanted.error; });
    slot = std::exchange(wanted, Slot{});
    ++taken_;
  }
  slot_freed_.notify_all();
  if (slot.error) std::rethrow_exception(slot.error);
  return std::move(slot.batch);
}

// A batch may be begun once its slot's last user was taken; so the loop sees them in order.
void BatchLoader::run_thread() {
  std::unique_lock lock(mutex_);
  for (;;) {
    slot_freed_.wait(lock, [&] {
      return stopping_ || claimed_ == batches_ ||
             claimed_ < taken_ + static_cast<std::int64_t>(slots_.size());
    });
    if (stopping_ || claimed_ == batches_) return;
    const std::int64_t number = claimed_++;
    lock.unlock();
    Slot made;
    try {
      made.batch = make_batch(number);
    } catch (...) {
      made.error = std::current_exception();
    }
    lock.lock();
    slot_of(number) = std::move(made);
    slot_filled_.notify_one();
  }
}

Batch BatchLoader::make_batch(std::int64_t number) const {
  const std::int64_t begin = number * options_.batch_size;
  const std::int64_t count =
      std::min(options_.batch_size, static_cast<std::int64_t>(indices_.size()) - begin);
  const ImageShape shape = dataset_.shape();
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(count * shape.bytes()));
  Batch batch;
  batch.labels = torch::empty({count}, torch::kInt64);
  batch.indices.assign(indices_.begin() + begin, indices_.begin() + begin + count);
  dataset_.read({indices_.data() + begin, static_cast<std::size_t>(count)}, pixels.data(),
                batch.labels.data_ptr<std::int64_t>());
  const auto layout =
      options_.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  batch.images = torch::empty({count, shape.channels, shape.height, shape.width}, layout);
  normalize(pixels, batch.images);
  const std::int64_t side = options_.image_size;
  if (side != 0 && (side != shape.height || side != shape.width)) {
    batch.images = torch::upsample_bilinear2d(batch.images, {side, side}, /*align_corners=*/false)
                       .contiguous(layout);
  }
  return batch;
}

void BatchLoader::normalize(const std::vector<std::uint8_t>& pixels, torch::Tensor& images) const {
  const std::int64_t count = images.size(0);
  const std::int64_t channels = images.size(1);
  const std::int64_t plane = images.size(2) * images.size(3);
  float* out = images.data_ptr<float>();
  const std::int64_t step = options_.channels_last ? channels : 1;
  for (std::int64_t n = 0; n < count; ++n) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const float* value = normalized_.data() + c * 256;
      const std::uint8_t* from = pixels.data() + (n * channels + c) * plane;
      float* to = out + n * channels * plane + (options_.channels_last ? c : c * plane);
      for (std::int64_t i = 0; i < plane; ++i) to[i * step] = value[from[i]];
    }
  }
}

}  // namespace ddprun::trainer
