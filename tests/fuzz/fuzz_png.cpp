// Any bytes must give pixels of the announced size or a reason, and a part of an image where the
// whole can be had: whether a PNG is sound does not depend on the part.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/finding.h"
#include "trainer/data/png_image.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;

namespace {

constexpr std::int64_t pixels_max = 1 << 20;  // So that an input takes little time and memory.

// The sum of the pixels that were asked for, so that all are read; -1 for an error.
std::int64_t sum_of_region(PngDecoder& decoder, std::span<const std::uint8_t> bytes,
                           const ImageRegion& region) {
  try {
    decoder.open(bytes);
    const DecodedImage image = decoder.decode(region);
    require(image.reduce == 1 && image.top <= region.top && image.left <= region.left &&
                image.top + image.pixels.height >= region.top + region.height &&
                image.left + image.pixels.width >= region.left + region.width,
            "the part that was asked for is not there");
    std::int64_t sum = 0;
    for (std::int64_t y = region.top; y < region.top + region.height; ++y) {
      for (std::int64_t x = region.left; x < region.left + region.width; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) {
          sum += *image.pixels.at(c, y - image.top, x - image.left);
        }
      }
    }
    return sum;
  } catch (const ImageError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
    return -1;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static PngDecoder decoder;  // As a thread's: what a file leaves behind must not harm the next.
  const std::span<const std::uint8_t> bytes(data, size);
  ImageSize image;
  try {
    image = decoder.open(bytes);
  } catch (const ImageError&) {
    return 0;
  }
  require(image.height > 0 && image.width > 0, "an image without pixels");
  if (image.height * image.width > pixels_max) return 0;
  const std::int64_t middle = image.height / 2;
  const std::int64_t upper =
      middle == 0 ? 0 : sum_of_region(decoder, bytes, {0, 0, middle, image.width, 1});
  const std::int64_t lower =
      sum_of_region(decoder, bytes, {middle, 0, image.height - middle, image.width, 1});
  const std::int64_t all = sum_of_region(decoder, bytes, {0, 0, image.height, image.width, 1});
  require(all < 0 ? lower < 0 && (middle == 0 || upper < 0) : all == upper + lower,
          "the halves are not the whole");
  return 0;
}
