// What a kernel can do of a sample's plan: shift and mirror, but neither cut nor resize.
#include "trainer/data/resident_samples.h"

#include <fmt/format.h>

#include <limits>

namespace ddprun::trainer {

std::string reason_against_residence(const Dataset& dataset, const TransformOptions& transform,
                                     std::int64_t bytes_max) {
  const ImageShape shape = dataset.shape();
  if (shape.height == 0) return "its images differ in size";
  if (transform.augment.random_resized_crop) return "random resized crops need the loader";
  if (shape.height != transform.side || shape.width != transform.side ||
      transform.resize_side != transform.side) {
    return fmt::format("its images of {}x{} pixels become {}x{}, and only the loader resizes",
                       shape.height, shape.width, transform.side, transform.side);
  }
  // A sample's plan goes to the device with each batch, and is 12 bytes with a 32-bit number.
  if (dataset.size() > std::numeric_limits<std::int32_t>::max()) return "it has too many images";
  const std::int64_t bytes = dataset.size() * shape.bytes();
  if (bytes > bytes_max) {
    return fmt::format("its {} images take {} MB, and {} MB are the most", dataset.size(),
                       bytes >> 20, bytes_max >> 20);
  }
  return "";
}

std::vector<std::uint8_t> resident_pixels(const Dataset& dataset) {
  const ImageShape shape = dataset.shape();
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.size() * shape.bytes()));
  std::uint8_t* out = pixels.data();
  const auto reader = dataset.make_reader();
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    reader->open(i);
    const ImageView view = reader->decode({.height = shape.height, .width = shape.width}).pixels;
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      for (std::int64_t y = 0; y < shape.height; ++y) {
        // Decoders give what they have, planes or pixels; the kernel knows planes alone.
        const std::uint8_t* row = view.at(c, y, 0);
        for (std::int64_t x = 0; x < shape.width; ++x) *out++ = row[x * view.column_step];
      }
    }
  }
  return pixels;
}

std::vector<std::int64_t> resident_labels(const Dataset& dataset) {
  std::vector<std::int64_t> labels(static_cast<std::size_t>(dataset.size()));
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    labels[static_cast<std::size_t>(i)] = dataset.label(i);
  }
  return labels;
}

std::vector<ResidentSample> resident_samples(const Dataset& dataset, const SampleOptions& options,
                                             const std::vector<std::int64_t>& indices) {
  const ImageSize size{dataset.shape().height, dataset.shape().width};
  std::vector<ResidentSample> samples;
  samples.reserve(indices.size());
  for (const std::int64_t index : indices) {
    // By the number in the data set and not in the batch: a sample's crop is the same whichever
    // rank or shard it falls to, as through the loader.
    const SamplePlan plan =
        plan_sample(size, options.transform, {options.seed, options.epoch, index});
    samples.push_back({static_cast<std::int32_t>(index), static_cast<std::int16_t>(plan.shift_down),
                       static_cast<std::int16_t>(plan.shift_right), plan.flip ? 1 : 0});
  }
  return samples;
}

}  // namespace ddprun::trainer
