// JPEG or PNG, as a file's first bytes say: names lie. ImageNet has a PNG whose name ends in .JPEG,
// and Pillow, which torchvision reads with, goes by content too.
// A core: no sockets, threads or clock.
#pragma once

#include "trainer/data/images/jpeg_image.h"
#include "trainer/data/images/png_image.h"

namespace ddprun::trainer {

class ImageDecoder : public FileDecoder {
 public:
  ImageSize open(std::span<const std::uint8_t> bytes) override {
    decoder_ = is_png(bytes) ? static_cast<FileDecoder*>(&png_) : &jpeg_;
    return decoder_->open(bytes);
  }
  bool is_plain_jpeg() const override { return decoder_->is_plain_jpeg(); }
  DecodedImage decode(const ImageRegion& region) override { return decoder_->decode(region); }

 private:
  JpegDecoder jpeg_;
  PngDecoder png_;
  FileDecoder* decoder_ = &jpeg_;
};

}  // namespace ddprun::trainer
