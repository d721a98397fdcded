// PNG bytes -> pixels: grey, colour, palette, with alpha or without, of any depth, interlaced or
// not.
//
// Colours are what Pillow's open().convert("RGB") gives: grey is repeated, alpha is left out (not
// blended with anything), of 16 bits the upper eight stay; colour profiles and gamma are ignored.
// (16-bit grey, which Pillow clips to white, is read as its upper eight bits too.) Data that is
// damaged or cut anywhere is an error, whichever part is wanted. A core: no sockets, threads or
// clock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

// Whether a file begins as PNG files do.
bool is_png(std::span<const std::uint8_t> bytes);

// For one thread: keeps its memory from image to image.
class PngDecoder {
 public:
  PngDecoder();
  ~PngDecoder();
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  // Reads the header. `bytes` must stay until decode(). Throws ImageError, whose message is about
  // "it", without a name: "it is truncated".
  ImageSize open(std::span<const std::uint8_t> bytes);

  // Three channels of at least `region`, which lies within the image; never reduced. The pixels are
  // valid until the next open(). Throws ImageError.
  DecodedImage decode(const ImageRegion& region);

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t*> rows_;
};

}  // namespace ddprun::trainer
