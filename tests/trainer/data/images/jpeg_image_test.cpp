// JPEG files of every kind: Pillow's pixels, parts equal to the whole, and no harm from damage.
#include "trainer/data/images/jpeg_image.h"

#include <random>

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/jpeg_writer.h"

using namespace ddprun::trainer;

namespace {

const std::vector<std::pair<std::string, JpegKind>> kinds{
    {"4:2:0", {}},
    {"4:2:2", {.vertical = 1}},
    {"4:4:0", {.horizontal = 1}},
    {"4:4:4", {.horizontal = 1, .vertical = 1}},
    {"4:1:1", {.horizontal = 4, .vertical = 1}},
    {"odd size", {.width = 61, .height = 37}},
    {"narrow", {.width = 1, .height = 77}},
    {"one pixel", {.width = 1, .height = 1}},
    {"grey", {.components = 1}},
    {"progressive", {.progressive = true}},
    {"restarts", {.restart_rows = 1}},
    {"RGB", {.horizontal = 1, .vertical = 1, .rgb = true}},
    {"CMYK", {.components = 4}},
    {"YCCK", {.components = 4, .ycck = true}},
    {"large", {.width = 500, .height = 375}},
};

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

struct Decoded {
  ImageSize size;
  std::vector<std::uint8_t> pixels;
};

Decoded decode(const std::string& file) {
  JpegDecoder decoder;
  const ImageSize size = decoder.open(bytes_of(file));
  const DecodedImage image = decoder.decode({.height = size.height, .width = size.width});
  CHECK(image.pixels.height == size.height);
  CHECK(image.pixels.width == size.width);
  return {size, interleave(image.pixels)};
}

std::string image_error(const std::string& file) {
  return message_of<ImageError>([&] { decode(file); });
}

}  // namespace

TEST_CASE("JPEG files of every kind have Pillow's pixels", "[trainer][data][jpeg][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Pillow in .deps/peer");
  const ScratchFolder folder;
  std::string names;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto path = folder / std::to_string(i);
    write_bytes(path, jpeg(kinds[i].second));
    names += argument(path);
  }
  REQUIRE(run_data_oracle("decode", folder / "decoded", names, folder / "log") == 0);
  const auto expected = read_oracle_images(folder / "decoded");
  REQUIRE(expected.size() == kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    INFO(kinds[i].first);
    const Decoded ours = decode(jpeg(kinds[i].second));
    REQUIRE(expected[i].readable);
    CHECK(ours.size == expected[i].size);
    CHECK(differences(ours.pixels, expected[i].pixels) == 0);
  }
}

TEST_CASE("any part of an image has the pixels of the whole", "[trainer][data][jpeg]") {
  std::minstd_rand random(3);
  for (auto [name, kind] : kinds) {
    kind.width = kind.width * 5 + 3;
    kind.height = kind.height * 5 + 1;
    const std::string file = jpeg(kind);
    for (const int reduce : {1, 2, 4, 8}) {
      JpegDecoder decoder;
      const ImageSize size = decoder.open(bytes_of(file));
      const DecodedImage image =
          decoder.decode({.height = size.height, .width = size.width, .reduce_max = reduce});
      REQUIRE(image.reduce == reduce);
      const std::vector<std::uint8_t> whole = interleave(image.pixels);
      const std::int64_t columns = image.pixels.width;
      for (int i = 0; i < 25; ++i) {
        ImageRegion region{.reduce_max = reduce};
        region.top = static_cast<std::int64_t>(random()) % size.height;
        region.left = static_cast<std::int64_t>(random()) % size.width;
        region.height = 1 + static_cast<std::int64_t>(random()) % (size.height - region.top);
        region.width = 1 + static_cast<std::int64_t>(random()) % (size.width - region.left);
        decoder.open(bytes_of(file));
        const DecodedImage part = decoder.decode(region);
        INFO(name << " reduced by " << reduce << ": " << region.width << "x" << region.height
                  << " at " << region.left << "," << region.top);
        // What was asked for is there.
        REQUIRE(part.top <= region.top / reduce);
        REQUIRE(part.left <= region.left / reduce);
        const std::int64_t bottom = (region.top + region.height + reduce - 1) / reduce;
        const std::int64_t right = (region.left + region.width + reduce - 1) / reduce;
        REQUIRE(part.top + part.pixels.height >= bottom);
        REQUIRE(part.left + part.pixels.width >= right);
        std::int64_t wrong = 0;
        for (std::int64_t y = region.top / reduce; y < bottom; ++y) {
          for (std::int64_t x = region.left / reduce; x < right; ++x) {
            for (std::int64_t c = 0; c < 3; ++c) {
              wrong += *part.pixels.at(c, y - part.top, x - part.left) !=
                       whole[static_cast<std::size_t>((y * columns + x) * 3 + c)];
            }
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("a JPEG file that is cut anywhere is an error", "[trainer][data][jpeg]") {
  for (const auto& [name, kind] : kinds) {
    if (kind.width > 100) continue;
    const std::string file = jpeg(kind);
    for (std::size_t length = 0; length < file.size(); ++length) {
      INFO(name << " cut to " << length << " of " << file.size() << " bytes");
      REQUIRE(image_error(file.substr(0, length)) != "");
    }
    CHECK(image_error(file + "what follows the end marker is of no interest") == "");
  }
}

TEST_CASE("any changed byte gives pixels or an error", "[trainer][data][jpeg]") {
  for (const auto& [name, kind] : kinds) {
    if (kind.width > 100) continue;
    const std::string file = jpeg(kind);
    std::minstd_rand random(5);
    for (std::size_t at = 0; at < file.size(); ++at) {
      std::string changed = file;
      changed[at] = static_cast<char>(random());
      try {
        decode(changed);
      } catch (const ImageError& error) {
        REQUIRE(std::string(error.what()) != "");
      }
    }
  }
}

TEST_CASE("a file that is no JPEG says what it is like", "[trainer][data][jpeg]") {
  CHECK(image_error("") == "it is empty");
  CHECK(contains(image_error("\x89PNG\r\n"), "it begins with 89 50 4e 47"));
  CHECK(contains(image_error("x"), "neither JPEG nor PNG"));
  const std::string file = jpeg({});
  CHECK(contains(image_error(file.substr(0, file.size() - 2)), "truncated"));
}

TEST_CASE("an image that claims to be huge is refused before it takes memory",
          "[trainer][data][jpeg]") {
  std::string file = jpeg({});
  const std::size_t header = file.find("\xff\xc0");
  REQUIRE(header != std::string::npos);
  for (std::size_t i = 5; i < 9; ++i) file[header + i] = '\xf0';  // Height and width.

  CHECK(contains(image_error(file), "61680x61680 pixels"));
}

TEST_CASE("a decoder works on after a bad file", "[trainer][data][jpeg]") {
  const std::string file = jpeg({});
  const Decoded expected = decode(file);
  JpegDecoder decoder;
  CHECK_THROWS_AS(decoder.open(bytes_of(file.substr(0, 300))), ImageError);
  CHECK_THROWS_AS(decoder.open({}), ImageError);
  decoder.open(bytes_of(file));  // And after one that was opened only.

  const ImageSize size = decoder.open(bytes_of(file));
  const DecodedImage image = decoder.decode({.height = size.height, .width = size.width});
  CHECK(differences(interleave(image.pixels), expected.pixels) == 0);
}
