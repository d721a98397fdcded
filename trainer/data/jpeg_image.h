// JPEG bytes -> pixels, or only the part of them that is wanted, in full size or reduced.
//
// Colours are what Pillow's open().convert("RGB") gives: grey is repeated, CMYK and YCCK are read
// as Adobe writes them (inverted). EXIF orientation is ignored, as by torchvision's loader. What
// libjpeg can repair, such as wrong Huffman codes within a scan, goes unnoticed, as it does there;
// a file that does not reach its end marker is an error. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

// For one thread: keeps its memory from image to image.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. `bytes` must stay until decode(). Throws ImageError, whose message is about
  // "it", without a name: "it is empty".
  ImageSize open(std::span<const std::uint8_t> bytes);

  // Three channels of at least `region`, which lies within the image, with the same values as in
  // the whole image. Reduces by 2, 4 or 8 where that is allowed, by the inverse DCT. The pixels
  // are valid until the next open(). Throws ImageError.
  DecodedImage decode(const ImageRegion& region);

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace ddprun::trainer
