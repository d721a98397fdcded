// Resizing: Pillow's bytes, and windows, layouts and boxes that agree with the whole.
#include "trainer/data/images/resample.h"

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/jpeg_writer.h"

using namespace ddprun::trainer;

namespace {

constexpr std::int64_t width = 64;
constexpr std::int64_t height = 48;

struct Case {
  ImageSize size;
  ResampleBox box;  // Top, left, bottom, right.
};

// Those of data_oracle.py.
const std::vector<Case> cases{
    {{24, 32}, {0, 0, 48, 64}},      {{224, 224}, {0, 0, 48, 64}},
    {{11, 7}, {0, 0, 48, 64}},       {{24, 64}, {0, 0, 48, 64}},
    {{48, 32}, {0, 0, 48, 64}},      {{29, 33}, {1.5, 3.25, 47.25, 60.75}},
    {{1, 1}, {0, 0, 48, 64}},        {{48, 64}, {0, 0, 48, 64}},
    {{3, 500}, {0, 10.5, 48, 20.5}}, {{30, 64}, {0, 1, 48, 64}},
    {{48, 70}, {1, 0, 48, 64}},      {{49, 40}, {0, 0, 48, 64}},
    {{48, 64}, {0, 0, 40, 50.5}},
};

ImageView view_of(const std::vector<std::uint8_t>& pixels) {
  return {pixels.data(), 3, height, width, 1, 3 * width, 3};
}

ResampleWindow whole(ImageSize size) { return {0, 0, size.height, size.width}; }

}  // namespace

TEST_CASE("resized images have Pillow's bytes", "[trainer][data][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Pillow in .deps/peer");
  const ScratchFolder folder;
  const std::vector<std::uint8_t> pixels = picture(width, height, 3);
  write_bytes(folder / "picture.ppm", "P6 64 48 255\n" + std::string(pixels.begin(), pixels.end()));
  REQUIRE(run_data_oracle("resize", folder / "resized", argument(folder / "picture.ppm"),
                          folder / "log") == 0);
  const auto expected = read_oracle_images(folder / "resized");
  REQUIRE(expected.size() == cases.size());
  Resampler resampler;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    INFO("case " << i);
    const ImageView ours =
        resampler.resize(view_of(pixels), cases[i].box, cases[i].size, whole(cases[i].size));
    CHECK(differences(interleave(ours), expected[i].pixels) == 0);
  }
}

TEST_CASE("a window of a resized image is that part of the whole", "[trainer][data]") {
  const std::vector<std::uint8_t> pixels = picture(width, height, 3);
  for (const Case& c : cases) {
    if (c.size.height < 4 || c.size.width < 4) continue;
    Resampler resampler, other;
    const ImageView all = resampler.resize(view_of(pixels), c.box, c.size, whole(c.size));
    ImageView part = all;
    part.data = all.at(0, 2, 1);
    part.height = c.size.height - 3;
    part.width = c.size.width - 3;
    const ImageView window =
        other.resize(view_of(pixels), c.box, c.size, {2, 1, part.height, part.width});
    CHECK(differences(interleave(window), interleave(part)) == 0);
  }
}

TEST_CASE("planes, columns and interleaved pixels are resized alike", "[trainer][data]") {
  const std::vector<std::uint8_t> pixels = picture(width, height, 3);
  std::vector<std::uint8_t> planes, columns;
  for (std::int64_t c = 0; c < 3; ++c) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) planes.push_back(*view_of(pixels).at(c, y, x));
    }
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t y = 0; y < height; ++y) columns.push_back(*view_of(pixels).at(c, y, x));
    }
  }
  const ImageView plane_view = view_of_planes(planes.data(), 3, height, width);
  const ImageView column_view{columns.data(), 3, height, width, width * height, 1, height};
  for (const Case& c : cases) {
    Resampler resampler;
    const auto expected =
        interleave(resampler.resize(view_of(pixels), c.box, c.size, whole(c.size)));
    CHECK(differences(interleave(resampler.resize(plane_view, c.box, c.size, whole(c.size))),
                      expected) == 0);
    CHECK(differences(interleave(resampler.resize(column_view, c.box, c.size, whole(c.size))),
                      expected) == 0);
  }
}

TEST_CASE("an even image stays even at any size", "[trainer][data]") {
  const std::vector<std::uint8_t> pixels(3 * width * height, 201);
  Resampler resampler;
  for (const ImageSize size : {ImageSize{1, 1}, ImageSize{5, 300}, ImageSize{47, 63}}) {
    for (const std::uint8_t byte :
         interleave(resampler.resize(view_of(pixels), {0, 0, height, width}, size, whole(size)))) {
      REQUIRE(byte == 201);
    }
  }
}
