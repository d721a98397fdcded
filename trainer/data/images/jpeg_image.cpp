// All of libjpeg is fenced in here: its errors jump, its numbers come from a file, limits are ours.
#include "trainer/data/images/jpeg_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <utility>
// clang-format off
#include <cstdio>  // Which the next one needs.
#include <jpeglib.h>

#include "trainer/data_error.h"
// clang-format on

namespace ddprun::trainer {
namespace {

constexpr std::int64_t pixels_max = 178'956'970;  // As Pillow: beyond, it is taken for an attack.
constexpr int scans_max = 500;  // A progressive file of a few bytes can ask for any number.
// Chroma at an edge of what is decoded is interpolated from one side only; so a block more is.
constexpr std::int64_t margin_pixels = 32;

std::string first_bytes(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes.first(std::min<std::size_t>(bytes.size(), 4))) {
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", byte);
  }
  return text;
}

// Whether the end marker comes at or after `from`. Its bytes cannot occur within a scan.
bool has_end(std::span<const std::uint8_t> bytes, std::size_t from) {
  for (std::size_t at = bytes.size(); at >= from + 2; --at) {
    if (bytes[at - 2] == 0xff && bytes[at - 1] == 0xd9) return true;
  }
  return false;
}

// Pillow's conversion, of inverted values (255 = no ink): each pixel's first three bytes become
// red, green and blue.
void cmyk_to_rgb(std::vector<std::uint8_t>& pixels) {
  for (std::size_t i = 0; i + 3 < pixels.size(); i += 4) {
    const int light = pixels[i + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      const int ink = 255 - pixels[i + c];
      const int product = ink * light + 128;
      pixels[i + c] =
          static_cast<std::uint8_t>(std::clamp(light - ((product + (product >> 8)) >> 8), 0, 255));
    }
  }
}

}  // namespace

// libjpeg leaves a call that fails by longjmp; so the functions that call it hold nothing that
// would have to be destroyed.
struct JpegDecoder::State {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_source_mgr source;
  jpeg_progress_mgr progress;
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX];

  std::span<const std::uint8_t> bytes;
  // Of decode(), in pixels of the reduced image.
  JDIMENSION left, width, top, rows;
  std::uint8_t* pixels;

  static State& of(j_common_ptr info) { return *static_cast<State*>(info->client_data); }
  static State& of(j_decompress_ptr info) { return *static_cast<State*>(info->client_data); }

  [[noreturn]] void fail(const char* text) {
    std::snprintf(message, sizeof message, "%s", text);
    std::longjmp(on_error, 1);
  }

  void set_up();
  bool create();
  bool read_header();
  bool start(int reduce);
  bool read_rows();
};

void JpegDecoder::State::set_up() {
  info.err = jpeg_std_error(&errors);
  errors.error_exit = [](j_common_ptr common) {
    State& state = of(common);
    common->err->format_message(common, state.message);
    std::longjmp(state.on_error, 1);
  };
  errors.output_message = [](j_common_ptr) {};  // Warnings: what was repaired.
  source.init_source = [](j_decompress_ptr) {};
  source.term_source = [](j_decompress_ptr) {};
  source.resync_to_restart = jpeg_resync_to_restart;
  source.fill_input_buffer = [](j_decompress_ptr decompress) -> boolean {
    of(decompress).fail("it is truncated: its data ends within the picture");
  };
  source.skip_input_data = [](j_decompress_ptr decompress, long count) {
    if (count <= 0) return;
    if (static_cast<std::size_t>(count) > decompress->src->bytes_in_buffer) {
      of(decompress).fail("it is truncated: its data ends within the header");
    }
    decompress->src->next_input_byte += count;
    decompress->src->bytes_in_buffer -= static_cast<std::size_t>(count);
  };
  progress.progress_monitor = [](j_common_ptr common) {
    if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > scans_max) {
      of(common).fail("it has more than 500 scans: no camera or program writes that");
    }
  };
}

bool JpegDecoder::State::create() {
  if (setjmp(on_error) != 0) return false;
  jpeg_create_decompress(&info);
  info.client_data = this;
  info.src = &source;
  info.progress = &progress;
  return true;
}

bool JpegDecoder::State::read_header() {
  if (setjmp(on_error) != 0) return false;
  jpeg_abort_decompress(&info);
  source.next_input_byte = bytes.data();
  source.bytes_in_buffer = bytes.size();
  jpeg_read_header(&info, TRUE);
  return true;
}

bool JpegDecoder::State::start(int reduce) {
  if (setjmp(on_error) != 0) return false;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(reduce);
  info.out_color_space = info.num_components == 4 ? JCS_CMYK : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&info);
  return true;
}

bool JpegDecoder::State::read_rows() {
  if (setjmp(on_error) != 0) return false;
  if (width < info.output_width) jpeg_crop_scanline(&info, &left, &width);
  if (top > 0) jpeg_skip_scanlines(&info, top);
  while (info.output_scanline < top + rows) {
    const std::size_t row = info.output_scanline - top;
    JSAMPROW line = pixels + row * width * static_cast<unsigned>(info.output_components);
    if (jpeg_read_scanlines(&info, &line, 1) != 1) fail("it is truncated");
  }
  jpeg_abort_decompress(&info);
  return true;
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
  state_->set_up();
  if (!state_->create()) throw DataError(fmt::format("libjpeg: {}", state_->message));
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->info); }

ImageSize JpegDecoder::open(std::span<const std::uint8_t> bytes) {
  if (bytes.empty()) throw ImageError("it is empty");
  if (bytes.size() < 3 || bytes[0] != 0xff || bytes[1] != 0xd8 || bytes[2] != 0xff) {
    throw ImageError(fmt::format(
        "it is neither JPEG nor PNG: it begins with {}, expected ff d8 ff or 89 50 4e 47",
        first_bytes(bytes)));
  }
  State& state = *state_;
  state.bytes = bytes;
  if (!state.read_header()) throw ImageError(state.message);
  const std::int64_t height = state.info.image_height;
  const std::int64_t width = state.info.image_width;
  if (height * width > pixels_max) {
    throw ImageError(fmt::format("it is said to have {}x{} pixels; at most {} are read", width,
                                 height, pixels_max));
  }
  if (state.info.num_components == 2 || state.info.num_components > 4) {
    throw ImageError(
        fmt::format("it has {} colour components; 1, 3 and 4 are read", state.info.num_components));
  }
  const auto scan_begin = static_cast<std::size_t>(state.source.next_input_byte - bytes.data());
  if (!has_end(bytes, scan_begin)) {
    throw ImageError("it is truncated: it has no end marker (ff d9)");
  }
  return {height, width};
}

bool JpegDecoder::is_plain_jpeg() const {
  const jpeg_decompress_struct& info = state_->info;
  const auto is_once = [](const jpeg_component_info& component) {
    return component.h_samp_factor == 1 && component.v_samp_factor == 1;
  };
  return info.num_components == 3 && info.comps_in_scan == 3 && !info.progressive_mode &&
         !info.arith_code && info.jpeg_color_space == JCS_YCbCr &&
         info.comp_info[0].h_samp_factor <= 2 && info.comp_info[0].v_samp_factor <= 2 &&
         is_once(info.comp_info[1]) && is_once(info.comp_info[2]);
}

DecodedImage JpegDecoder::decode(const ImageRegion& region) {
  State& state = *state_;
  DecodedImage result;
  while (result.reduce < 8 && 2 * result.reduce <= region.reduce_max) result.reduce *= 2;
  if (!state.start(result.reduce)) throw ImageError(state.message);

  // The wanted part of the reduced image, and around it what its edges need.
  const auto cut = [&](std::int64_t begin, std::int64_t length, std::int64_t all) {
    const std::int64_t end = (begin + length + result.reduce - 1) / result.reduce;
    const std::int64_t from = std::max<std::int64_t>(0, begin / result.reduce - margin_pixels);
    return std::pair(static_cast<JDIMENSION>(from),
                     static_cast<JDIMENSION>(std::min(all, end + margin_pixels) - from));
  };
  std::tie(state.left, state.width) = cut(region.left, region.width, state.info.output_width);
  std::tie(state.top, state.rows) = cut(region.top, region.height, state.info.output_height);
  const std::size_t components = static_cast<std::size_t>(state.info.output_components);
  // A row's cut begins at a block, up to 32 pixels before what is asked for.
  const std::size_t columns =
      std::min<std::size_t>(state.info.output_width, state.width + std::size_t{64});
  pixels_.resize(columns * state.rows * components);
  state.pixels = pixels_.data();
  if (!state.read_rows()) throw ImageError(state.message);
  if (components == 4) cmyk_to_rgb(pixels_);

  result.top = state.top;
  result.left = state.left;
  const auto step = static_cast<std::ptrdiff_t>(components);
  result.pixels = {pixels_.data(),
                   3,
                   state.rows,
                   state.width,
                   1,
                   static_cast<std::ptrdiff_t>(state.width) * step,
                   step};
  return result;
}

}  // namespace ddprun::trainer
