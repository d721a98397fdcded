// PNG files through libpng, whose errors are long jumps: they stay within this file.
#include "trainer/data/images/png_image.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "trainer/data_error.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t png_pixels_max = 178'956'970;  // As Pillow, and as for JPEG.
constexpr std::size_t signature_bytes = 8;
constexpr std::size_t message_bytes = 128;
constexpr std::size_t rgb_bytes = 3;
// No stream of deflate unpacks to more times its size. A few bytes that claim a large picture are
// so found out before there is memory for it.
constexpr std::size_t deflate_ratio_max = 1032;

}  // namespace

// A jump does not run destructors: between the setjmp of each function here and the calls of libpng
// there is nothing that has one.
struct PngDecoder::State {
  png_structp png = nullptr;
  png_infop info = nullptr;
  char message[message_bytes] = {};
  std::span<const std::uint8_t> left;  // What libpng has not read yet.

  // Of decode().
  std::uint8_t** rows = nullptr;  // Where each row goes.

  ~State() { close(); }

  void close() { png_destroy_read_struct(&png, &info, nullptr); }

  static void read(png_structp reader, png_bytep to, std::size_t count) {
    State& state = *static_cast<State*>(png_get_io_ptr(reader));
    if (count > state.left.size()) png_error(reader, "it is truncated");
    std::memcpy(to, state.left.data(), count);
    state.left = state.left.subspan(count);
  }

  bool start();
  bool read_header();
  bool read_rows();
};

bool PngDecoder::State::start() {
  close();
  const auto on_error = [](png_structp reader, png_const_charp text) {
    State& state = *static_cast<State*>(png_get_error_ptr(reader));
    const bool own = std::strncmp(text, "it ", 3) == 0;
    std::snprintf(state.message, sizeof state.message, "%s%s",
                  own ? "" : "it is damaged: libpng: ", text);
    png_longjmp(reader, 1);
  };
  png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error,
                               [](png_structp, png_const_charp) {});
  if (png != nullptr) info = png_create_info_struct(png);
  return info != nullptr;
}

bool PngDecoder::State::read_header() {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, this, read);
  // Text, profiles and the like: not used here, and some are compressed, at whatever ratio.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, info);
  return true;
}

// Every row is read, also behind the wanted ones: whether a file is sound must not depend on the
// part of it that an epoch happens to draw.
bool PngDecoder::State::read_rows() {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_strip_16(png);  // Before expansion, so that grey of 16 bits is not widened.
  png_set_expand(png);    // Palette to RGB, 1, 2 and 4 bits to 8, and marked colours to alpha ...
  png_set_strip_alpha(png);  // ... which is dropped at once.
  png_set_gray_to_rgb(png);
  const int interlace_passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (png_get_rowbytes(png, info) != rgb_bytes * png_get_image_width(png, info)) {
    png_error(png, "it has a kind of pixel that is not known");
  }
  const png_uint_32 height = png_get_image_height(png, info);
  for (int pass = 0; pass < interlace_passes; ++pass) {
    for (png_uint_32 y = 0; y < height; ++y) png_read_row(png, rows[y], nullptr);
  }
  return true;
}

bool is_png(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= signature_bytes && png_sig_cmp(bytes.data(), 0, signature_bytes) == 0;
}

PngDecoder::PngDecoder() : state_(std::make_unique<State>()) {}

PngDecoder::~PngDecoder() = default;

ImageSize PngDecoder::open(std::span<const std::uint8_t> bytes) {
  if (!is_png(bytes)) throw ImageError("it is not a PNG file");
  State& state = *state_;
  if (!state.start()) throw DataError("libpng: no memory, or another version than at the build");
  state.left = bytes;
  if (!state.read_header()) throw ImageError(state.message);
  const std::int64_t height = png_get_image_height(state.png, state.info);
  const std::int64_t width = png_get_image_width(state.png, state.info);
  if (height * width > png_pixels_max) {
    throw ImageError(fmt::format("it is said to have {}x{} pixels; at most {} are read", width,
                                 height, png_pixels_max));
  }
  const std::size_t unpacked =
      png_get_rowbytes(state.png, state.info) * static_cast<std::size_t>(height);
  if (unpacked / deflate_ratio_max > bytes.size()) {
    throw ImageError(fmt::format("it is truncated: {} bytes cannot hold {}x{} pixels", bytes.size(),
                                 width, height));
  }
  return {height, width};
}

DecodedImage PngDecoder::decode(const ImageRegion& region) {
  State& state = *state_;
  const auto width = static_cast<std::size_t>(png_get_image_width(state.png, state.info));
  const auto height = static_cast<std::size_t>(png_get_image_height(state.png, state.info));
  const bool interlaced = png_get_interlace_type(state.png, state.info) != PNG_INTERLACE_NONE;
  // Of an interlaced image each pass completes the rows of the one before, so all must be there.
  const std::size_t top = interlaced ? 0 : static_cast<std::size_t>(region.top);
  const std::size_t kept = interlaced ? height : static_cast<std::size_t>(region.height);
  pixels_.resize((kept + 1) * width * rgb_bytes);  // One more for rows that nobody wants.
  rows_.resize(height);
  for (std::size_t y = 0; y < height; ++y) {
    const bool wanted = y >= top && y - top < kept;
    rows_[y] = pixels_.data() + (wanted ? y - top : kept) * width * rgb_bytes;
  }
  state.rows = rows_.data();
  if (!state.read_rows()) throw ImageError(state.message);

  DecodedImage result;
  result.top = static_cast<std::int64_t>(top);
  const auto step = static_cast<std::ptrdiff_t>(rgb_bytes);
  result.pixels = {pixels_.data(),
                   static_cast<std::int64_t>(rgb_bytes),
                   static_cast<std::int64_t>(kept),
                   static_cast<std::int64_t>(width),
                   1,
                   static_cast<std::ptrdiff_t>(width) * step,
                   step};
  return result;
}

}  // namespace ddprun::trainer
