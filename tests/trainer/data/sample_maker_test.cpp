// Samples of files: torchvision's floats, whatever was made before, in both memory orders.
#include "trainer/data/sample_maker.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/jpeg_writer.h"
#include "tests/trainer/data/listed_files.h"
#include "trainer/data/sets/memory_dataset.h"

using namespace ddprun::trainer;

namespace {

std::vector<std::string> some_files() {
  return {jpeg({.width = 500, .height = 375}), jpeg({.width = 100, .height = 300}),
          jpeg({.width = 231, .height = 231, .components = 1}),
          jpeg({.width = 640, .height = 333, .progressive = true})};
}

std::vector<float> make(SampleMaker& maker, std::int64_t index, std::int64_t floats) {
  std::vector<float> out(static_cast<std::size_t>(floats), -100);
  std::vector<SkippedImage> skipped;
  REQUIRE(maker.make(index, out.data(), skipped));
  CHECK(skipped.empty());
  return out;
}

SampleOptions random_crops(const Dataset& dataset) {
  return {.transform = {.side = 64,
                        .resize_side = 64,
                        .augment = {.flip = true, .random_resized_crop = true}},
          .normalization = dataset.normalization(),
          .seed = 3,
          .epoch = 1};
}

// No further file can be opened while it lives.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // The lowest number that is free.
    REQUIRE(next >= 0);
    ::close(next);
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

MemoryDataset ramp() {
  MemoryDataset::Contents contents{
      .shape = {1, 3, 3}, .classes = 2, .normalization = {{0.0F}, {1.0F / 255}}};
  for (std::uint8_t i = 1; i <= 9; ++i) contents.pixels.push_back(i);
  contents.labels = {0};
  return MemoryDataset(std::move(contents));
}

}  // namespace

TEST_CASE("validation samples are torchvision's", "[trainer][data][sample][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ListedFiles files(some_files());
  constexpr std::int64_t floats = 3 * 112 * 112;
  REQUIRE(run_data_oracle("validation", files / "samples", "128 112" + files.names(),
                          files / "log") == 0);
  const std::string bytes = content_of(files / "samples");
  REQUIRE(bytes.size() == 4 * floats * sizeof(float));
  SampleMaker maker(files.dataset(), {.transform = {.side = 112, .resize_side = 128},
                                      .normalization = files.dataset().normalization()});
  for (std::int64_t i = 0; i < 4; ++i) {
    std::vector<float> expected(floats);
    std::memcpy(expected.data(),
                bytes.data() + i * floats * static_cast<std::int64_t>(sizeof(float)),
                floats * sizeof(float));
    const std::vector<float> ours = make(maker, i, floats);
    double greatest = 0;
    for (std::size_t k = 0; k < ours.size(); ++k) {
      greatest = std::max(greatest, static_cast<double>(std::abs(ours[k] - expected[k])));
    }
    INFO("image " << i);
    CHECK(greatest < 1e-6);
  }
}

TEST_CASE("a much reduced image is nearly that of the full decoder",
          "[trainer][data][sample][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const auto archive = shared_data("imagefolder/sign_digits_400.tar");
  if (!archive) DDPRUN_SKIP(no_shared_data);
  const ScratchFolder folder;
  REQUIRE(run_command(std::string("tar -x -O -f") + argument(*archive) +
                          " sign_digits/train/7/IMG_5935.JPG",
                      folder / "photo") == 0);
  const ListedFiles files({content_of(folder / "photo")});  // 3024x3024: reduced by 4.
  constexpr std::int64_t floats = 3 * 224 * 224;
  REQUIRE(run_data_oracle("validation", files / "samples", "256 224" + files.names(),
                          files / "log") == 0);
  const std::string bytes = content_of(files / "samples");
  REQUIRE(bytes.size() == floats * sizeof(float));
  std::vector<float> expected(floats);
  std::memcpy(expected.data(), bytes.data(), bytes.size());

  SampleMaker maker(files.dataset(), {.transform = {.side = 224, .resize_side = 256},
                                      .normalization = files.dataset().normalization()});
  const std::vector<float> ours = make(maker, 0, floats);

  double sum = 0;
  for (std::size_t k = 0; k < ours.size(); ++k) sum += std::abs(ours[k] - expected[k]);
  CHECK(sum / floats * 0.225 * 255 < 1);  // Of 255 levels, on average.
}

TEST_CASE("a sample does not depend on what was made before", "[trainer][data][sample]") {
  const ListedFiles files(some_files());
  constexpr std::int64_t floats = 3 * 64 * 64;
  const SampleOptions options = random_crops(files.dataset());
  SampleMaker maker(files.dataset(), options);
  std::vector<std::vector<float>> samples;
  for (std::int64_t i = 0; i < 4; ++i) samples.push_back(make(maker, i, floats));
  for (const std::int64_t i : {3, 0, 2, 1, 1}) {
    CHECK(make(maker, i, floats) == samples[static_cast<std::size_t>(i)]);
    SampleMaker fresh(files.dataset(), options);
    CHECK(make(fresh, i, floats) == samples[static_cast<std::size_t>(i)]);
  }
  SampleOptions next_epoch = options;
  next_epoch.epoch = 2;
  SampleMaker next(files.dataset(), next_epoch);
  CHECK(make(next, 0, floats) != samples[0]);
}

TEST_CASE("the memory order of a sample is as asked for", "[trainer][data][sample]") {
  const ListedFiles files(some_files());
  constexpr std::size_t plane = 64 * 64;
  SampleOptions options = random_crops(files.dataset());
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {  // Mirrored or not.
    options.epoch = epoch;
    options.channels_last = false;
    SampleMaker planes(files.dataset(), options);
    options.channels_last = true;
    SampleMaker pixels(files.dataset(), options);
    const auto a = make(planes, 0, 3 * plane);
    const auto b = make(pixels, 0, 3 * plane);
    std::size_t equal = 0;
    for (std::size_t i = 0; i < plane; ++i) {
      for (std::size_t c = 0; c < 3; ++c) equal += a[c * plane + i] == b[3 * i + c];
    }
    CHECK(equal == 3 * plane);
  }
}

TEST_CASE("a shifted image has black where nothing is", "[trainer][data][sample]") {
  const MemoryDataset dataset = ramp();
  const NormalizationTable table(dataset.normalization());
  const auto placed = [&](const SamplePlacement& placement) {
    std::vector<float> out(9, -1);
    write_normalized(dataset.image(0), placement, table, false, out.data());
    for (float& value : out) value = std::round(value);
    return out;
  };
  CHECK(placed({}) == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(placed({.flip = true}) == std::vector<float>{3, 2, 1, 6, 5, 4, 9, 8, 7});
  CHECK(placed({.shift_down = 1}) == std::vector<float>{0, 0, 0, 1, 2, 3, 4, 5, 6});
  CHECK(placed({.shift_right = -1}) == std::vector<float>{2, 3, 0, 5, 6, 0, 8, 9, 0});
  CHECK(placed({.shift_down = -1, .shift_right = 2, .flip = true}) ==
        std::vector<float>{4, 0, 0, 7, 0, 0, 0, 0, 0});
  CHECK(placed({.shift_right = 5}) == std::vector<float>(9, 0));
}

TEST_CASE("what to do about a bad image is as asked for", "[trainer][data][sample]") {
  const ListedFiles files({jpeg({}), "bad", "", jpeg({.width = 30})});
  constexpr std::int64_t floats = 3 * 64 * 64;
  std::vector<float> out(floats);
  std::vector<SkippedImage> skipped;
  SampleOptions options = random_crops(files.dataset());

  SampleMaker failing(files.dataset(), options);
  const std::string error = message_of<DataError>([&] { failing.make(1, out.data(), skipped); });
  CHECK(contains(error, "1.jpg"));
  CHECK(contains(error, "--on-bad-image skip"));
  CHECK(skipped.empty());

  options.on_bad_image = BadImagePolicy::Replace;
  SampleMaker replacing(files.dataset(), options);
  CHECK(replacing.make(1, out.data(), skipped)->index == 3);
  REQUIRE(skipped.size() == 2);
  CHECK(skipped[0].index == 1);
  CHECK(contains(skipped[1].reason, "2.jpg"));

  options.on_bad_image = BadImagePolicy::Omit;
  SampleMaker omitting(files.dataset(), options);
  CHECK_FALSE(omitting.make(1, out.data(), skipped));
  CHECK(omitting.make(0, out.data(), skipped)->label == 0);

  const ListedFiles all_bad({"bad", "", "x"});
  options.on_bad_image = BadImagePolicy::Replace;
  SampleMaker hopeless(all_bad.dataset(), options);
  CHECK(contains(message_of<DataError>([&] { hopeless.make(1, out.data(), skipped); }),
                 "3 images in a row cannot be read"));
}

TEST_CASE("a failure of the machine is no bad image, also where those are skipped",
          "[trainer][data][sample]") {
  const ListedFiles files(some_files());
  SampleOptions options = random_crops(files.dataset());
  options.on_bad_image = GENERATE(BadImagePolicy::Replace, BadImagePolicy::Omit);
  SampleMaker maker(files.dataset(), options);
  std::vector<float> out(3 * 64 * 64);
  std::vector<SkippedImage> skipped;

  const std::string message = message_of<DataError>([&] {
    const NoMoreFiles none;
    maker.make(1, out.data(), skipped);
  });

  CHECK(skipped.empty());
  CHECK(contains(message, "cannot read image 1, " + (files / "1.jpg").string()));
  CHECK(contains(message, "Too many open files"));
  CHECK(contains(message, "the file system or this process failed, not the image"));
  CHECK(maker.make(1, out.data(), skipped));  // Nothing is wrong with it.

  std::filesystem::remove(files / "1.jpg");
  const auto next = maker.make(1, out.data(), skipped);
  CHECK(skipped.size() == 1);
  CHECK(next.has_value() == (options.on_bad_image == BadImagePolicy::Replace));
}
