// Numbers from a hash of the position: any image can be drawn by any rank without the ones before.
#include "trainer/data/sets/synthetic.h"

#include <fmt/format.h>

namespace ddprun::trainer {
namespace {

// SplitMix64 (Steele, Lea, Flood, 2014): the n-th number of a stream is a function of n.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

constexpr std::int64_t pixels_per_draw = 8;  // Bytes of one 64-bit number.

class SyntheticReader : public ImageReader {
 public:
  explicit SyntheticReader(const SyntheticDataset& dataset)
      : dataset_(dataset), pixels_(static_cast<std::size_t>(dataset.shape().bytes())) {}

  ImageSize open(std::int64_t index) override {
    dataset_.draw(index, pixels_.data());
    return {dataset_.shape().height, dataset_.shape().width};
  }
  DecodedImage decode(const ImageRegion& /*region*/) override {
    const ImageShape shape = dataset_.shape();
    return {.pixels = view_of_planes(pixels_.data(), shape.channels, shape.height, shape.width)};
  }

 private:
  const SyntheticDataset& dataset_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace

Normalization SyntheticDataset::normalization() const {
  const auto channels = static_cast<std::size_t>(options_.shape.channels);
  return {std::vector<float>(channels, 0.5F), std::vector<float>(channels, 0.25F)};
}

std::string SyntheticDataset::description() const {
  return fmt::format("synthetic: {} images of {}x{}x{}, {} classes", options_.size,
                     options_.shape.channels, options_.shape.height, options_.shape.width,
                     options_.classes);
}

std::int64_t SyntheticDataset::label(std::int64_t index) const {
  return static_cast<std::int64_t>(mixed(mixed(options_.seed) ^ static_cast<std::uint64_t>(index)) %
                                   static_cast<std::uint64_t>(options_.classes));
}

std::uint64_t SyntheticDataset::list_checksum() const {
  std::uint64_t sum = options_.seed;
  for (const std::int64_t number : {options_.size, options_.classes, options_.shape.channels,
                                    options_.shape.height, options_.shape.width}) {
    sum = mixed(sum ^ static_cast<std::uint64_t>(number));
  }
  return sum;
}

void SyntheticDataset::draw(std::int64_t index, std::uint8_t* image) const {
  const std::int64_t bytes = options_.shape.bytes();
  const std::int64_t quarter_bytes = (bytes + 3) / 4;
  // Not of the seed: training and validation set have different ones, and must look alike.
  const std::uint64_t levels = mixed(~mixed(static_cast<std::uint64_t>(label(index))));
  const std::uint64_t stream = mixed(options_.seed + 1) ^ mixed(static_cast<std::uint64_t>(index));
  for (std::int64_t at = 0; at < bytes; at += pixels_per_draw) {
    const std::uint64_t noise = mixed(stream + static_cast<std::uint64_t>(at));
    const auto level = static_cast<std::uint8_t>(levels >> (8 * (at / quarter_bytes)) & 0x7f);
    for (std::int64_t k = 0; k < pixels_per_draw && at + k < bytes; ++k) {
      image[at + k] = static_cast<std::uint8_t>(level + (noise >> (8 * k) & 0x7f));
    }
  }
}

std::unique_ptr<ImageReader> SyntheticDataset::make_reader() const {
  return std::make_unique<SyntheticReader>(*this);
}

}  // namespace ddprun::trainer
