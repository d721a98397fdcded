// Bytes of an image file -> pixels, or only the part of them that is wanted. What each format's
// decoder does; colours are those of Pillow's open().convert("RGB").
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/data/images/image_view.h"

namespace ddprun::trainer {

// For one thread: keeps its memory from image to image.
class FileDecoder {
 public:
  FileDecoder() = default;
  virtual ~FileDecoder() = default;
  FileDecoder(const FileDecoder&) = delete;
  FileDecoder& operator=(const FileDecoder&) = delete;

  // Reads the header. `bytes` must stay until decode(). Throws ImageError, whose message is about
  // "it", without a name: "it is truncated".
  virtual ImageSize open(std::span<const std::uint8_t> bytes) = 0;

  // Whether what open() has read is a JPEG that every decoder makes the same picture of, but for
  // rounding: baseline, in one scan, of YCbCr with the usual sizes of its chroma.
  virtual bool is_plain_jpeg() const { return false; }

  // Three channels of at least `region`, which lies within the image, with the same values as in
  // the whole image. The pixels are valid until the next open(). Throws ImageError.
  virtual DecodedImage decode(const ImageRegion& region) = 0;
};

}  // namespace ddprun::trainer
