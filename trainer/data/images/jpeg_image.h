// JPEG, through libjpeg. CMYK and YCCK are read as Adobe writes them (inverted). EXIF orientation
// is ignored, as by torchvision's loader. What libjpeg can repair, such as wrong Huffman codes
// within a scan, goes unnoticed, as it does there; a file that does not reach its end marker is an
// error. A core: no sockets, threads or clock.
#pragma once

#include <memory>
#include <vector>

#include "trainer/data/images/file_decoder.h"

namespace ddprun::trainer {

class JpegDecoder : public FileDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder() override;

  ImageSize open(std::span<const std::uint8_t> bytes) override;

  bool is_plain_jpeg() const override;

  // Reduces by 2, 4 or 8 where that is allowed, by the inverse DCT.
  DecodedImage decode(const ImageRegion& region) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace ddprun::trainer
