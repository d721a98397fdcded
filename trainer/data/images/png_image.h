// PNG, through libpng: grey, colour, palette, with alpha or without, of any depth, interlaced or
// not. Alpha is left out (not blended with anything), of 16 bits the upper eight stay, also of
// grey, which Pillow clips to white; colour profiles and gamma are ignored. Data that is damaged or
// cut anywhere is an error, whichever part is wanted. A core: no sockets, threads or clock.
#pragma once

#include <memory>
#include <vector>

#include "trainer/data/images/file_decoder.h"

namespace ddprun::trainer {

// Whether a file begins as PNG files do.
bool is_png(std::span<const std::uint8_t> bytes);

class PngDecoder : public FileDecoder {
 public:
  PngDecoder();
  ~PngDecoder() override;

  ImageSize open(std::span<const std::uint8_t> bytes) override;
  DecodedImage decode(const ImageRegion& region) override;  // Never reduced.

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t*> rows_;
};

}  // namespace ddprun::trainer
