// JPEG files of every kind, made by libjpeg.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>
// clang-format off
#include <cstdio>  // Which the next one needs.
#include <jpeglib.h>
// clang-format on

namespace ddprun::trainer {

struct JpegKind {
  unsigned width = 64;
  unsigned height = 48;
  int components = 3;  // 1: grey, 3: colour, 4: CMYK.
  int quality = 90;
  int horizontal = 2;  // Chroma's share of the resolution: 2x2 is 4:2:0.
  int vertical = 2;
  bool progressive = false;
  bool rgb = false;   // Colour without conversion to YCbCr.
  bool ycck = false;  // Four components, as Photoshop writes them.
  unsigned restart_rows = 0;
};

// A picture with large and small shapes, as interleaved bytes.
inline std::vector<std::uint8_t> picture(unsigned width, unsigned height, int components) {
  std::vector<std::uint8_t> pixels;
  for (unsigned y = 0; y < height; ++y) {
    for (unsigned x = 0; x < width; ++x) {
      for (int c = 0; c < components; ++c) {
        const unsigned k = static_cast<unsigned>(c);
        const unsigned blocks = (x / 7 * 37 + y / 5 * 59 + k * 83) % 160;
        pixels.push_back(static_cast<std::uint8_t>(blocks + (x * (k + 1) + y * 3) % 90));
      }
    }
  }
  return pixels;
}

inline std::string jpeg(const JpegKind& kind) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = kind.width;
  info.image_height = kind.height;
  info.input_components = kind.components;
  info.in_color_space =
      kind.components == 1 ? JCS_GRAYSCALE : (kind.components == 3 ? JCS_RGB : JCS_CMYK);
  jpeg_set_defaults(&info);
  if (kind.rgb) jpeg_set_colorspace(&info, JCS_RGB);
  if (kind.ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, kind.quality, TRUE);
  if (kind.components == 3 || kind.ycck) {
    info.comp_info[0].h_samp_factor = kind.horizontal;
    info.comp_info[0].v_samp_factor = kind.vertical;
    if (kind.ycck) {
      info.comp_info[3].h_samp_factor = kind.horizontal;
      info.comp_info[3].v_samp_factor = kind.vertical;
    }
  }
  if (kind.progressive) jpeg_simple_progression(&info);
  info.restart_in_rows = static_cast<int>(kind.restart_rows);
  jpeg_start_compress(&info, TRUE);
  std::vector<std::uint8_t> pixels = picture(kind.width, kind.height, kind.components);
  const std::size_t row_bytes = static_cast<std::size_t>(kind.width) * info.input_components;
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + info.next_scanline * row_bytes;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string bytes(reinterpret_cast<char*>(memory), size);
  std::free(memory);
  return bytes;
}

}  // namespace ddprun::trainer
