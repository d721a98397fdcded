// PNG files of every kind: the right pixels, parts equal to the whole, and no harm from damage.
#include "trainer/data/images/png_image.h"

#include <random>

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/png_writer.h"
#include "trainer/data/images/image_decoder.h"

using namespace ddprun::trainer;

namespace {

const std::vector<std::pair<std::string, PngKind>> png_kinds{
    {"RGB", {}},
    {"RGB, 16 bits", {.depth = 16}},
    {"RGB, one colour marked", {.transparent = true}},
    {"RGBA", {.colour = PNG_COLOR_TYPE_RGB_ALPHA}},
    {"RGBA, 16 bits, interlaced",
     {.colour = PNG_COLOR_TYPE_RGB_ALPHA, .depth = 16, .interlaced = true}},
    {"interlaced", {.interlaced = true}},
    {"grey", {.colour = PNG_COLOR_TYPE_GRAY}},
    {"grey, 4 bits", {.colour = PNG_COLOR_TYPE_GRAY, .depth = 4}},
    {"grey, 2 bits, interlaced", {.colour = PNG_COLOR_TYPE_GRAY, .depth = 2, .interlaced = true}},
    {"grey, 1 bit", {.colour = PNG_COLOR_TYPE_GRAY, .depth = 1}},
    {"grey, one level marked", {.colour = PNG_COLOR_TYPE_GRAY, .transparent = true}},
    {"grey with alpha", {.colour = PNG_COLOR_TYPE_GRAY_ALPHA}},
    {"palette", {.colour = PNG_COLOR_TYPE_PALETTE}},
    {"palette with transparent colours", {.colour = PNG_COLOR_TYPE_PALETTE, .transparent = true}},
    {"palette of 16", {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 4}},
    {"palette of 2, interlaced",
     {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 1, .interlaced = true}},
    {"one pixel", {.width = 1, .height = 1}},
    {"one pixel, interlaced", {.width = 1, .height = 1, .interlaced = true}},
    {"with a compressed text", {.text_bytes = 100'000}},
};
const PngKind grey_16{.colour = PNG_COLOR_TYPE_GRAY, .depth = 16};  // Pillow makes it white.

std::span<const std::uint8_t> span_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::vector<std::uint8_t> decode_png(const std::string& file, ImageSize& size) {
  PngDecoder decoder;
  size = decoder.open(span_of(file));
  const DecodedImage image = decoder.decode({.height = size.height, .width = size.width});
  return interleave(image.pixels);
}

std::string png_error(const std::string& file) {
  ImageSize size;
  return message_of<ImageError>([&] { decode_png(file, size); });
}

}  // namespace

TEST_CASE("PNG files of every kind become three channels of eight bits", "[trainer][data][png]") {
  auto kinds = png_kinds;
  kinds.emplace_back("grey, 16 bits", grey_16);
  for (const auto& [name, kind] : kinds) {
    INFO(name);
    ImageSize size;
    const auto pixels = decode_png(png(kind), size);
    CHECK(size == ImageSize{kind.height, kind.width});
    CHECK(differences(pixels, pixels_of(kind)) == 0);
  }
}

TEST_CASE("PNG files of every kind have Pillow's pixels", "[trainer][data][png][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Pillow in .deps/peer");
  const ScratchFolder folder;
  std::string names;
  for (std::size_t i = 0; i < png_kinds.size(); ++i) {
    const auto path = folder / std::to_string(i);
    write_bytes(path, png(png_kinds[i].second));
    names += argument(path);
  }
  REQUIRE(run_data_oracle("decode", folder / "decoded", names, folder / "log") == 0);
  const auto expected = read_oracle_images(folder / "decoded");
  REQUIRE(expected.size() == png_kinds.size());
  for (std::size_t i = 0; i < png_kinds.size(); ++i) {
    INFO(png_kinds[i].first);
    REQUIRE(expected[i].readable);
    CHECK(differences(pixels_of(png_kinds[i].second), expected[i].pixels) == 0);
  }
}

TEST_CASE("any part of a PNG has the pixels of the whole", "[trainer][data][png]") {
  std::minstd_rand random(3);
  PngDecoder decoder;  // One for all: a file leaves nothing behind for the next.
  for (const auto& [name, kind] : png_kinds) {
    const std::string file = png(kind);
    const auto whole = pixels_of(kind);
    for (int round = 0; round < 10; ++round) {
      const auto top = static_cast<std::int64_t>(random() % kind.height);
      const auto left = static_cast<std::int64_t>(random() % kind.width);
      const auto height = 1 + static_cast<std::int64_t>(random() % (kind.height - top));
      const auto width = 1 + static_cast<std::int64_t>(random() % (kind.width - left));
      decoder.open(span_of(file));
      const DecodedImage part = decoder.decode({top, left, height, width, 8});
      INFO(name << ": " << height << "x" << width << " at " << top << ", " << left);
      REQUIRE(part.reduce == 1);
      REQUIRE(part.top <= top);
      REQUIRE(part.top + part.pixels.height >= top + height);
      std::size_t wrong = 0;
      for (std::int64_t y = top; y < top + height; ++y) {
        for (std::int64_t x = left; x < left + width; ++x) {
          for (std::int64_t c = 0; c < 3; ++c) {
            wrong += *part.pixels.at(c, y - part.top, x - part.left) !=
                     whole[static_cast<std::size_t>((y * kind.width + x) * 3 + c)];
          }
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a file is read as what it is, whatever its name says", "[trainer][data][png]") {
  ImageDecoder decoder;
  const std::string first = png({.width = 5, .height = 3});
  const std::string second = jpeg({.width = 7, .height = 4});
  CHECK(decoder.open(span_of(first)) == ImageSize{3, 5});
  CHECK(decoder.open(span_of(second)) == ImageSize{4, 7});
  CHECK(decoder.decode({.height = 4, .width = 7}).pixels.height == 4);
  const std::string neither = "RIFF....WEBP";
  CHECK(contains(message_of<ImageError>([&] { decoder.open(span_of(neither)); }),
                 "neither JPEG nor PNG: it begins with 52 49 46 46"));
}

TEST_CASE("a cut PNG is an error wherever it ends, also outside of the wanted part",
          "[trainer][data][png]") {
  for (const bool interlaced : {false, true}) {
    const std::string whole = png({.interlaced = interlaced});
    REQUIRE(png_error(whole) == "");
    constexpr std::size_t end_chunk_bytes = 12;  // Behind the picture; nobody misses it.
    for (std::size_t length = 0; length < whole.size() - end_chunk_bytes; ++length) {
      INFO(length);
      REQUIRE(png_error(whole.substr(0, length)) != "");
    }
    PngDecoder decoder;
    const std::string cut = whole.substr(0, whole.size() - 30);
    decoder.open(span_of(cut));
    CHECK(contains(message_of<ImageError>([&] {
                     decoder.decode({0, 0, 1, 1, 1});
                   }),
                   "it is truncated"));
  }
}

TEST_CASE("a damaged PNG gives an error or pixels, and leaves the decoder sound",
          "[trainer][data][png]") {
  std::minstd_rand random(5);
  PngDecoder decoder;
  for (const auto& [name, kind] : png_kinds) {
    const std::string whole = png(kind);
    for (int round = 0; round < 50; ++round) {
      std::string damaged = whole;
      for (std::size_t i = 0; i < 1 + random() % 3; ++i) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      static_cast<void>(message_of<ImageError>([&] {
        const ImageSize size = decoder.open(span_of(damaged));
        decoder.decode({.height = size.height, .width = size.width});
      }));
      INFO(name);
      REQUIRE(decoder.open(span_of(whole)) == ImageSize{kind.height, kind.width});
    }
  }
}

TEST_CASE("a few bytes that claim a huge PNG cost no memory", "[trainer][data][png]") {
  // A header of its own, with the right checksum, in front of the data of a small picture.
  const std::string small = png({.width = 1, .height = 1});
  const std::string large = png({.width = 60'000, .height = 1, .colour = PNG_COLOR_TYPE_GRAY});
  std::string claims = large.substr(0, 33) + small.substr(33);
  CHECK(contains(png_error(claims), "it is"));
  std::string text;
  for (const auto& [width, height] : {std::pair(100'000U, 100'000U), std::pair(13'000U, 13'000U)}) {
    std::vector<std::uint8_t> header;
    for (const unsigned value : {width, height}) {
      for (int shift = 24; shift >= 0; shift -= 8) {
        header.push_back(static_cast<std::uint8_t>(value >> shift));
      }
    }
    std::string chunk = "IHDR" + std::string(header.begin(), header.end()) + small.substr(24, 5);
    std::uint32_t crc = 0xffffffff;
    for (const char c : chunk) {
      crc ^= static_cast<std::uint8_t>(c);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    crc = ~crc;
    for (int shift = 24; shift >= 0; shift -= 8) chunk += static_cast<char>(crc >> shift);
    const std::string file = small.substr(0, 12) + chunk + small.substr(33);
    text = png_error(file);
    INFO(text);
    CHECK(contains(text, width == 100'000 ? "at most 178956970 are read" : "cannot hold"));
  }
}
