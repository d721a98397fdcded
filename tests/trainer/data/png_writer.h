// PNG files of every kind, made by libpng, and the pixels that must come of them.
#pragma once

#include <png.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/trainer/data/jpeg_writer.h"

namespace ddprun::trainer {

struct PngKind {
  unsigned width = 61;
  unsigned height = 37;
  int colour = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  bool interlaced = false;
  bool transparent = false;    // One colour, or some of the palette's, are marked so.
  std::size_t text_bytes = 0;  // Of a compressed text of so many equal letters.
};

inline int channels_of(const PngKind& kind) {
  return kind.colour == PNG_COLOR_TYPE_PALETTE      ? 1
         : kind.colour == PNG_COLOR_TYPE_GRAY       ? 1
         : kind.colour == PNG_COLOR_TYPE_GRAY_ALPHA ? 2
         : kind.colour == PNG_COLOR_TYPE_RGB        ? 3
                                                    : 4;
}

inline png_color colour_of(unsigned index) {
  return {static_cast<png_byte>(index * 7 + 3), static_cast<png_byte>(255 - index),
          static_cast<png_byte>(index * 13)};
}

// What a reader must make of it: interleaved, three channels.
inline std::vector<std::uint8_t> pixels_of(const PngKind& kind) {
  const int channels = channels_of(kind);
  const auto samples = picture(kind.width, kind.height, channels);
  std::vector<std::uint8_t> pixels;
  for (std::size_t at = 0; at < samples.size(); at += static_cast<std::size_t>(channels)) {
    const unsigned level = kind.depth < 8 ? samples[at] >> (8 - kind.depth) : samples[at];
    if (kind.colour == PNG_COLOR_TYPE_PALETTE) {
      const png_color colour = colour_of(level);
      for (const png_byte value : {colour.red, colour.green, colour.blue}) pixels.push_back(value);
    } else if (channels <= 2) {
      const unsigned grey = kind.depth < 8 ? level * 255 / ((1U << kind.depth) - 1) : level;
      pixels.insert(pixels.end(), 3, static_cast<std::uint8_t>(grey));
    } else {
      for (std::size_t c = 0; c < 3; ++c) pixels.push_back(samples[at + c]);
    }
  }
  return pixels;
}

inline std::string png(const PngKind& kind) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  if (setjmp(png_jmpbuf(png)) != 0) std::abort();  // The test asked for what there is not.
  static std::string bytes;  // Not a local: the jump would pass its destructor.
  bytes.clear();
  const auto append = [](png_structp, png_bytep data, std::size_t count) {
    bytes.append(reinterpret_cast<const char*>(data), count);
  };
  png_set_write_fn(png, nullptr, append, nullptr);
  png_set_IHDR(png, info, kind.width, kind.height, kind.depth, kind.colour,
               kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_color palette[256];
  for (unsigned i = 0; i < 256; ++i) palette[i] = colour_of(i);
  if (kind.colour == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette, 1 << kind.depth);
  png_byte alpha[4] = {0, 50, 100, 255};
  png_color_16 marked{1, 1, 1, 1, 1};
  if (kind.transparent) png_set_tRNS(png, info, alpha, kind.depth == 1 ? 2 : 4, &marked);
  std::string letters(kind.text_bytes, 'a');
  png_text text{};
  text.compression = PNG_TEXT_COMPRESSION_zTXt;
  char key[] = "Comment";
  text.key = key;
  text.text = letters.data();
  text.text_length = letters.size();
  if (kind.text_bytes > 0) png_set_text(png, info, &text, 1);
  png_write_info(png, info);
  png_set_packing(png);
  const int channels = channels_of(kind);
  std::vector<std::uint8_t> samples;
  for (const std::uint8_t sample : picture(kind.width, kind.height, channels)) {
    samples.push_back(kind.depth < 8 ? sample >> (8 - kind.depth) : sample);
    if (kind.depth == 16) samples.push_back(static_cast<std::uint8_t>(sample * 3));  // Lower half.
  }
  std::vector<png_bytep> rows;
  for (unsigned y = 0; y < kind.height; ++y) {
    rows.push_back(samples.data() + y * (samples.size() / kind.height));
  }
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

}  // namespace ddprun::trainer
