// Whole images are decoded, whatever is cut out of them: an engine's time goes with the file, and
// not with the pixels that are kept.
#include "trainer/device/device_jpeg_decoder.h"

#include <c10/core/StreamGuard.h>

#include <utility>

#include "trainer/data/resample_plans.h"
#include "trainer/kernels/device/on_device.h"

namespace ddprun::trainer {
namespace {

// What decoded images take at a time, of each thread: 256 of ImageNet's have half of it.
constexpr std::int64_t decoded_bytes_max = std::int64_t{256} << 20;

}  // namespace

DeviceJpegDecoder::DeviceJpegDecoder(Options options) : options_(std::move(options)) {
  const OnDevice on(options_.device);
  nvjpeg_.emplace();
}

DeviceJpegDecoder::~DeviceJpegDecoder() {
  const OnDevice on(options_.device);
  nvjpeg_.reset();
}

void DeviceJpegDecoder::begin() {
  files_.clear();
  taken_.clear();
}

bool DeviceJpegDecoder::take(std::int64_t place, std::span<const std::uint8_t> file, ImageSize size,
                             const SamplePlan& plan) {
  const OnDevice on(options_.device);
  if (!nvjpeg_->reads(file)) return false;
  taken_.push_back({place, files_.size(), file.size(), size, plan});
  files_.insert(files_.end(), file.begin(), file.end());
  return true;
}

bool DeviceJpegDecoder::finish(Batch& batch) {
  if (taken_.empty()) return true;
  const OnDevice on(options_.device);
  std::optional<c10::StreamGuard> on_own;
  if (options_.stream) on_own.emplace(*options_.stream);
  const auto layout =
      options_.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  torch::Tensor images;
  std::string problem;
  try {
    images = torch::empty(batch.images.sizes(),
                          torch::TensorOptions(options_.device).dtype(torch::kUInt8), layout);
    const std::span<const Taken> all = taken_;
    for (std::size_t begin = 0; begin < all.size();) {
      std::size_t end = begin;
      std::int64_t bytes = 0;
      do {
        bytes += all[end++].room_bytes();
      } while (end < all.size() && bytes + all[end].room_bytes() <= decoded_bytes_max);
      decode_group(all.subspan(begin, end - begin), images);
      begin = end;
    }
    copy_rest(batch.images, images);
  } catch (const NvJpegError& error) {
    problem = error.what();
  } catch (const c10::OutOfMemoryError&) {  // Its text has a page of figures.
    problem = "the GPU's memory is full";
  }
  if (options_.stream) options_.stream->synchronize();
  if (!problem.empty()) {
    if (options_.warn) options_.warn(problem);
    return false;
  }
  batch.images = images;
  return true;
}

void DeviceJpegDecoder::decode_group(std::span<const Taken> group, const torch::Tensor& images) {
  std::int64_t bytes = 0;
  for (const Taken& taken : group) bytes += taken.room_bytes();
  const torch::Tensor pixels =
      torch::empty({bytes}, torch::TensorOptions(options_.device).dtype(torch::kUInt8));
  std::vector<std::span<const std::uint8_t>> files;
  std::vector<NvJpegImage> decoded;
  ResamplePlans plans(options_.side);
  auto* next = pixels.data_ptr<std::uint8_t>();
  for (const Taken& taken : group) {
    const std::int64_t row_bytes = 3 * taken.size.width;
    files.emplace_back(files_.data() + taken.file_begin, taken.file_bytes);
    decoded.push_back({{next}, {static_cast<std::size_t>(row_bytes)}});
    plans.add(taken.plan, next, row_bytes, taken.place);
    next += taken.room_bytes();
  }
  const OnDevice on(options_.device);
  if (options_.stream)
    options_.stream->synchronize();  // nvJPEG's own memory may be that of the group before.
  nvjpeg_->decode(files, decoded, on.stream());
  const torch::Tensor tables = upload(plans.tables(), options_.device);
  const torch::Tensor told =
      upload(plans.images(pointer_to<const std::int32_t>(tables)), options_.device);
  const ResampleBatch batch{.images = pointer_to<const ResampledImage>(told),
                            .count = std::ssize(group),
                            .side = static_cast<std::int32_t>(options_.side),
                            .channels_last = options_.channels_last ? 1 : 0,
                            .out = images.data_ptr<std::uint8_t>()};
  run_kernel(step_kernels(options_.device.is_cuda()).resample, batch, on.stream());
}

// Images of other kinds, which the loader has decoded.
void DeviceJpegDecoder::copy_rest(const torch::Tensor& from, const torch::Tensor& to) const {
  auto taken = taken_.begin();
  for (std::int64_t place = 0; place < from.size(0); ++place) {
    if (taken != taken_.end() && taken->place == place) {
      ++taken;
    } else {
      to[place].copy_(from[place], /*non_blocking=*/true);
    }
  }
}

std::unique_ptr<BatchDecoder> make_device_jpeg_decoder(DeviceJpegDecoder::Options options) {
  const auto warn = options.warn;
  try {
    return std::make_unique<DeviceJpegDecoder>(std::move(options));
  } catch (const NvJpegError& error) {
    if (warn) warn(error.what());
    return nullptr;
  }
}

}  // namespace ddprun::trainer
