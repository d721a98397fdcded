// JPEG or PNG, as a file's first bytes say: names lie. ImageNet has a PNG whose name ends in .JPEG,
// and Pillow, which torchvision reads with, goes by content too.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/data/jpeg_image.h"
#include "trainer/data/png_image.h"

namespace ddprun::trainer {

// For one thread. As JpegDecoder and PngDecoder.
class ImageDecoder {
 public:
  ImageSize open(std::span<const std::uint8_t> bytes) {
    is_png_ = is_png(bytes);
    return is_png_ ? png_.open(bytes) : jpeg_.open(bytes);
  }
  DecodedImage decode(const ImageRegion& region) {
    return is_png_ ? png_.decode(region) : jpeg_.decode(region);
  }

 private:
  bool is_png_ = false;
  JpegDecoder jpeg_;
  PngDecoder png_;
};

}  // namespace ddprun::trainer
