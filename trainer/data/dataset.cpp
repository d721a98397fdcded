// The reader that all sets whose pixels lie ready in memory share: there is nothing to decode.
#include "trainer/data/dataset.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddprun::trainer {
namespace {

class PlainReader : public ImageReader {
 public:
  explicit PlainReader(const PlainDataset& dataset) : dataset_(dataset) {}

  ImageSize open(std::int64_t index) override {
    image_ = dataset_.image(index);
    return {image_.height, image_.width};
  }
  DecodedImage decode(const ImageRegion& /*region*/) override { return {.pixels = image_}; }

 private:
  const PlainDataset& dataset_;
  ImageView image_;
};

}  // namespace

std::uint64_t Dataset::list_checksum() const {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < size(); ++i) labels.push_back(label(i));
  return XXH64(labels.data(), labels.size() * sizeof labels[0], 0);
}

std::unique_ptr<ImageReader> PlainDataset::make_reader() const {
  return std::make_unique<PlainReader>(*this);
}

std::vector<std::uint8_t> read_planes(const Dataset& dataset, std::int64_t index) {
  const auto reader = dataset.make_reader();
  const ImageSize size = reader->open(index);
  const ImageView view = reader->decode({.height = size.height, .width = size.width}).pixels;
  std::vector<std::uint8_t> planes;
  for (std::int64_t c = 0; c < view.channels; ++c) {
    for (std::int64_t y = 0; y < size.height; ++y) {
      for (std::int64_t x = 0; x < size.width; ++x) planes.push_back(*view.at(c, y, x));
    }
  }
  return planes;
}

}  // namespace ddprun::trainer
