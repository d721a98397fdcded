// Any bytes must give pixels of the announced size or a reason, and a part of an image where the
// whole can be had.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/finding.h"
#include "trainer/data/jpeg_image.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

namespace {

constexpr std::int64_t pixels_max = 1 << 20;  // So that an input takes little time and memory.

std::uint64_t sum_of(const DecodedImage& image) {
  std::uint64_t sum = 0;
  for (std::int64_t y = 0; y < image.pixels.height; ++y) {
    for (std::int64_t x = 0; x < image.pixels.width; ++x) {
      for (std::int64_t c = 0; c < 3; ++c) sum += *image.pixels.at(c, y, x);
    }
  }
  return sum;
}

// Reads every pixel that was asked for; false when the image cannot be read.
bool decodes(JpegDecoder& decoder, std::span<const std::uint8_t> bytes, const ImageRegion& region) {
  try {
    decoder.open(bytes);
    const DecodedImage image = decoder.decode(region);
    const auto reduced = [&](std::int64_t end) { return (end + image.reduce - 1) / image.reduce; };
    require(image.top <= region.top / image.reduce && image.left <= region.left / image.reduce &&
                image.top + image.pixels.height >= reduced(region.top + region.height) &&
                image.left + image.pixels.width >= reduced(region.left + region.width),
            "the part that was asked for is not there");
    return sum_of(image) < ~std::uint64_t{0};
  } catch (const ImageError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static JpegDecoder decoder;  // As a thread's: what a file leaves behind must not harm the next.
  const std::span<const std::uint8_t> bytes(data, size);
  ImageSize image;
  try {
    image = decoder.open(bytes);
  } catch (const ImageError&) {
    return 0;
  }
  require(image.height > 0 && image.width > 0, "an image without pixels");
  if (image.height * image.width > pixels_max) return 0;
  const int reduce = 1 << (size % 4);
  decodes(decoder, bytes, {0, 0, image.height, image.width, 1});
  decodes(decoder, bytes, {0, 0, image.height, image.width, reduce});
  const std::int64_t top = image.height / 3;
  const std::int64_t left = image.width / 3;
  decodes(decoder, bytes,
          {top, left, std::max<std::int64_t>(1, image.height / 2 - top),
           std::max<std::int64_t>(1, image.width / 2 - left), reduce});
  return 0;
}
