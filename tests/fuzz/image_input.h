// What the targets of all image formats ask of a decoder: pixels where they were asked for, or a
// reason.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tests/fuzz/finding.h"
#include "trainer/data/images/file_decoder.h"
#include "trainer/data_error.h"

namespace ddprun::fuzz {

constexpr std::int64_t pixels_max = 1 << 20;  // So that an input takes little time and memory.

// The size that the header tells; nothing for what is no image, or too large to be tried.
inline std::optional<trainer::ImageSize> try_open(trainer::FileDecoder& decoder,
                                                  std::span<const std::uint8_t> bytes) {
  try {
    const trainer::ImageSize image = decoder.open(bytes);
    require(image.height > 0 && image.width > 0, "an image without pixels");
    if (image.height * image.width > pixels_max) return std::nullopt;
    return image;
  } catch (const trainer::ImageError&) {
    return std::nullopt;
  }
}

// The sum of the pixels that were asked for, so that all are read; nothing for an error.
inline std::optional<std::int64_t> sum_of_region(trainer::FileDecoder& decoder,
                                                 std::span<const std::uint8_t> bytes,
                                                 const trainer::ImageRegion& region) {
  try {
    decoder.open(bytes);
    const trainer::DecodedImage image = decoder.decode(region);
    require(image.reduce >= 1 && image.reduce <= region.reduce_max, "reduced by more than allowed");
    const std::int64_t top = region.top / image.reduce, left = region.left / image.reduce;
    const std::int64_t bottom = (region.top + region.height + image.reduce - 1) / image.reduce;
    const std::int64_t right = (region.left + region.width + image.reduce - 1) / image.reduce;
    require(image.top <= top && image.left <= left && image.top + image.pixels.height >= bottom &&
                image.left + image.pixels.width >= right,
            "the part that was asked for is not there");
    std::int64_t sum = 0;
    for (std::int64_t y = top; y < bottom; ++y) {
      for (std::int64_t x = left; x < right; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) {
          sum += *image.pixels.at(c, y - image.top, x - image.left);
        }
      }
    }
    return sum;
  } catch (const trainer::ImageError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
    return std::nullopt;
  }
}

}  // namespace ddprun::fuzz
