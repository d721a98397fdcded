// Pixels where they lie: bytes of channels, rows and columns at steps of any kind, so that planes,
// interleaved pixels and column-major planes are read by the same code.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::trainer {

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool operator==(const ImageSize&) const = default;
};

// Does not own the pixels.
struct ImageView {
  const std::uint8_t* data = nullptr;  // Channel 0 of the pixel at the top left.
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::ptrdiff_t channel_step = 0;  // Bytes from one to the next.
  std::ptrdiff_t row_step = 0;
  std::ptrdiff_t column_step = 0;

  const std::uint8_t* at(std::int64_t channel, std::int64_t row, std::int64_t column) const {
    return data + channel * channel_step + row * row_step + column * column_step;
  }
};

// The part of an image that is wanted, in pixels of the full image. A reader of compressed images
// may give it reduced by 2, 4 or 8 in both directions, but by no more than `reduce_max`.
struct ImageRegion {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  int reduce_max = 1;
};

// At least the wanted part: the view's first pixel is pixel (top, left) of the image reduced by
// `reduce`.
struct DecodedImage {
  ImageView pixels;
  std::int64_t top = 0;
  std::int64_t left = 0;
  int reduce = 1;
};

// Channel planes one after the other, row by row.
inline ImageView view_of_planes(const std::uint8_t* data, std::int64_t channels,
                                std::int64_t height, std::int64_t width) {
  return {data, channels, height, width, height * width, width, 1};
}

}  // namespace ddprun::trainer
