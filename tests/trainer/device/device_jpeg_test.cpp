// Batches of JPEG files through nvJPEG: over a library of ours that decodes on the CPU, where they
// have the loader's bits, and on a GPU through NVIDIA's.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/trainer/data/jpeg_writer.h"
#include "tests/trainer/data/listed_files.h"
#include "tests/trainer/data/png_writer.h"
#include "tests/trainer/device/fake_nvjpeg.h"
#include "tests/trainer/kernels/device_memory.h"
#include "tests/trainer/same_batches.h"
#include "trainer/device/byte_batches.h"
#include "trainer/device/device_jpeg_decoder.h"
#include "trainer/device/stream_beside.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;
using ddprun::testing::contains;

namespace {

constexpr std::int64_t side = 64;

// A process has one library, the first that it asks for: ctest gives each case a process.
bool has_the_fake() {
  return ::dlopen(DDPRUN_FAKE_NVJPEG, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) != nullptr;
}

// The library of ours as it is at first, for NvJpeg to find.
FakeNvJpeg& fake_nvjpeg() {
  ::setenv("DDPRUN_NVJPEG", DDPRUN_FAKE_NVJPEG, 1);
  void* const library = ::dlopen(DDPRUN_FAKE_NVJPEG, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  void* const entry = ::dlsym(library, fake_nvjpeg_entry);
  REQUIRE(entry != nullptr);
  FakeNvJpeg& fake = *reinterpret_cast<FakeNvJpeg* (*)()>(entry)();
  fake = {};
  return fake;
}

std::vector<std::int64_t> all_of(const Dataset& dataset) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < dataset.size(); ++i) indices.push_back(i);
  return indices;
}

// Less than twice the sides of a sample, so that libjpeg decodes them whole, too.
std::vector<std::string> plain_files() {
  std::vector<std::string> files;
  for (unsigned i = 0; i < 7; ++i) {
    files.push_back(jpeg({.width = 65 + 9 * i,
                          .height = 120 - 7 * i,
                          .horizontal = i % 2 == 0 ? 2 : 1,
                          .vertical = i % 3 == 0 ? 2 : 1}));
  }
  return files;
}

// Which libjpeg alone is to decode.
std::vector<std::string> other_files() {
  return {jpeg({.components = 1}), jpeg({.components = 4}), jpeg({.progressive = true}),
          jpeg({.rgb = true})};
}

LoaderOptions loader_options(const Dataset& dataset, int threads, bool channels_last,
                             std::int64_t batch_size = 3) {
  return {.batch_size = batch_size,
          .threads = threads,
          .sample = {.transform = {.side = side,
                                   .resize_side = side + 5,
                                   .augment = {.flip = true, .pad_crop = true}},
                     .normalization = dataset.normalization(),
                     .seed = 8,
                     .epoch = 2,
                     .channels_last = channels_last}};
}

struct Warnings {
  std::atomic<int> count = 0;
  std::mutex mutex;
  std::string last;
};

LoaderOptions with_decoder(LoaderOptions options, torch::Device device, Warnings* warnings) {
  std::optional<c10::Stream> stream;
  if (device.is_cuda()) {
    stream = stream_beside(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  options.make_decoder = [=, last = options.sample.channels_last] {
    return make_device_jpeg_decoder({.device = device,
                                     .side = side,
                                     .channels_last = last,
                                     .stream = stream,
                                     .warn = [=](const std::string& text) {
                                       if (warnings == nullptr) return;
                                       const std::lock_guard lock(warnings->mutex);
                                       ++warnings->count;
                                       warnings->last = text;
                                     }});
  };
  return options;
}

ByteBatches decoded_batches(const Dataset& dataset, const LoaderOptions& options,
                            Warnings* warnings = nullptr) {
  return {dataset, all_of(dataset), with_decoder(options, torch::kCPU, warnings), torch::kCPU};
}

// Through nvJPEG and without, to the end. The files that both have passed over.
std::size_t check_same(const Dataset& dataset, const LoaderOptions& options,
                       Warnings* warnings = nullptr) {
  ByteBatches found = decoded_batches(dataset, options, warnings);
  BatchLoader expected(dataset, all_of(dataset), options);
  check_same_batches(found, expected);
  return found.skipped().size();
}

}  // namespace

TEST_CASE("a machine without nvJPEG is told where to get it", "[trainer][nvjpeg]") {
  if (has_the_fake()) DDPRUN_SKIP("this process has the nvJPEG of the tests: run this case alone");
  ::setenv("DDPRUN_NVJPEG", "/nonexistent/libnvjpeg.so", 1);
  std::string reason;
  try {
    NvJpeg();
  } catch (const NvJpegError& error) {
    reason = error.what();
  }
  CHECK(contains(reason, "nvJPEG cannot be loaded: /nonexistent/libnvjpeg.so: cannot open"));
  CHECK(contains(reason, "Python package nvidia-nvjpeg"));
  fake_nvjpeg();
  CHECK(NvJpeg().has_engines());  // It was looked for again.
}

TEST_CASE("batches that nvJPEG decodes are the loader's, bit for bit", "[trainer][nvjpeg]") {
  FakeNvJpeg& fake = fake_nvjpeg();
  const ListedFiles files(plain_files());
  for (const bool channels_last : {false, true}) {
    for (const int threads : {0, 2}) {
      INFO("last: " << channels_last << ", threads: " << threads);
      const LoaderOptions options = loader_options(files.dataset(), threads, channels_last);
      fake = {};
      check_same(files.dataset(), options);
      CHECK(fake.files == 7);
      CHECK(fake.batches == 3);
      CHECK(fake.open == 0);
    }
  }
}

TEST_CASE("a batch size is announced when it changes", "[trainer][nvjpeg]") {
  FakeNvJpeg& fake = fake_nvjpeg();
  const ListedFiles files(plain_files());
  const LoaderOptions options = loader_options(files.dataset(), 0, true);
  ByteBatches found = decoded_batches(files.dataset(), options);
  while (found.next()) {
  }
  CHECK(fake.prepared == 2);  // 3, 3, 1
}

TEST_CASE("what nvJPEG does not read is decoded by libjpeg, in the same batch",
          "[trainer][nvjpeg]") {
  FakeNvJpeg& fake = fake_nvjpeg();
  std::vector<std::string> mixed = other_files();
  mixed.push_back(png({.width = 70, .height = 80}));
  for (std::string& file : plain_files()) mixed.insert(mixed.begin() + 2, std::move(file));
  mixed.push_back(jpeg({.width = 127, .height = 66}));
  const ListedFiles files(mixed);
  fake.width_max = 100;  // Which two of the plain ones are beyond, and the last.
  const LoaderOptions options = loader_options(files.dataset(), 0, true, 4);
  Warnings warnings;
  check_same(files.dataset(), options, &warnings);
  CHECK(fake.files == 4);
  CHECK(warnings.count == 0);
  CHECK(fake.open == 0);
}

TEST_CASE("a batch that nvJPEG gives back is made by libjpeg as a whole, and told",
          "[trainer][nvjpeg]") {
  FakeNvJpeg& fake = fake_nvjpeg();
  const ListedFiles files(plain_files());
  fake.refused_batches = 1;
  const LoaderOptions options = loader_options(files.dataset(), 0, false);
  Warnings warnings;
  check_same(files.dataset(), options, &warnings);
  CHECK(warnings.count == 1);
  CHECK(warnings.last == "nvJPEG cannot decode a batch: execution failed");
  CHECK(fake.files == 4);
  CHECK(fake.prepared == 3);  // Anew after the refusal.
}

TEST_CASE("an epoch for which nvJPEG is not to be had any more is decoded by libjpeg, and told",
          "[trainer][nvjpeg]") {
  FakeNvJpeg& fake = fake_nvjpeg();
  const ListedFiles files(plain_files());
  for (const int threads : {0, 2}) {
    const LoaderOptions options = loader_options(files.dataset(), threads, true);
    Warnings warnings;
    fake = {};
    check_same(files.dataset(), options, &warnings);
    CHECK(fake.files == 7);
    CHECK(warnings.count == 0);
    fake.has_gpu = false;  // Its memory is full, say.
    check_same(files.dataset(), options, &warnings);
    CHECK(fake.files == 7);
    CHECK(warnings.count > 0);  // Of each thread that came to make a batch.
    CHECK(warnings.last == "nvJPEG cannot be used on this GPU: execution failed");
  }
}

TEST_CASE("files that cannot be read are left out and replaced with nvJPEG as without",
          "[trainer][nvjpeg]") {
  FakeNvJpeg& fake = fake_nvjpeg();
  std::vector<std::string> files_with_bad = plain_files();
  files_with_bad[1].resize(files_with_bad[1].size() / 2);
  files_with_bad[4] = "not an image";
  const ListedFiles files(files_with_bad);
  for (const auto policy : {BadImagePolicy::Omit, BadImagePolicy::Replace}) {
    LoaderOptions options = loader_options(files.dataset(), 2, true);
    options.sample.on_bad_image = policy;
    CHECK(check_same(files.dataset(), options) == 2);
  }
  LoaderOptions options = loader_options(files.dataset(), 0, true);
  ByteBatches found = decoded_batches(files.dataset(), options);
  fake = {};
  CHECK_THROWS_AS(found.next(), DataError);
  CHECK_THROWS_AS(found.next(), DataError);
  CHECK(found.next());
  CHECK(fake.files == 1);  // Nothing of the batches before.
}

TEST_CASE("without JPEG engines the GPU's kernels decode; without a GPU nothing does",
          "[trainer][nvjpeg]") {
  FakeNvJpeg& fake = fake_nvjpeg();
  CHECK(NvJpeg().has_engines());
  fake.has_engines = false;
  CHECK(NvJpeg().why_no_engines() == "this GPU has no JPEG engines");
  fake.has_engines = true;
  fake.engines_status = 5;
  CHECK(NvJpeg().why_no_engines() == "its JPEG engines cannot be used: allocator failure");
  fake.has_gpu = false;
  CHECK_THROWS_WITH(NvJpeg(), "nvJPEG cannot be used on this GPU: execution failed");
  CHECK(fake.open == 0);
}

TEST_CASE("on a GPU nvJPEG's images are libjpeg's but for rounding", "[trainer][nvjpeg][gpu]") {
  if (const std::string why = no_gpu(); !why.empty()) DDPRUN_SKIP(why);
  if (has_the_fake()) DDPRUN_SKIP("this process has the nvJPEG of the tests: run this case alone");
  std::vector<std::string> mixed = plain_files();
  for (std::string& file : other_files()) mixed.insert(mixed.begin() + 2, std::move(file));
  const ListedFiles files(mixed);
  for (const int threads : {0, 3}) {
    const LoaderOptions options = loader_options(files.dataset(), threads, true, 4);
    Warnings warnings;
    const torch::Device device(torch::kCUDA, 0);
    ByteBatches found(files.dataset(), all_of(files.dataset()),
                      with_decoder(options, device, &warnings), device);
    BatchLoader expected(files.dataset(), all_of(files.dataset()), options);
    while (const auto right = expected.next()) {
      const auto batch = found.next();
      REQUIRE(batch);
      // In deviations of ImageNet's pixels, of which one is some 58 levels.
      const auto difference = (batch->images.cpu() - right->images).abs();
      CHECK(difference.mean().item<float>() < 0.03F);
      CHECK(difference.max().item<float>() < 0.5F);
      CHECK(torch::equal(batch->labels.cpu(), right->labels));
    }
    CHECK(warnings.count == 0);
  }
}

TEST_CASE("on a GPU a batch of parts that nvJPEG decodes has what a batch at once has",
          "[trainer][nvjpeg][gpu]") {
  if (const std::string why = no_gpu(); !why.empty()) DDPRUN_SKIP(why);
  if (has_the_fake()) DDPRUN_SKIP("this process has the nvJPEG of the tests: run this case alone");
  std::vector<std::string> many;
  for (int i = 0; i < 40; ++i) {
    for (std::string& file : plain_files()) many.push_back(std::move(file));
  }
  const ListedFiles files(many);
  const torch::Device device(torch::kCUDA, 0);
  const auto batches_of = [&](std::int64_t part_size) {
    LoaderOptions options = loader_options(files.dataset(), 3, true, 28);
    options.part_size = part_size;
    ByteBatches found(files.dataset(), all_of(files.dataset()),
                      with_decoder(options, device, nullptr), device);
    // So that the GPU is far behind the host, as it is behind a trainer.
    const torch::Tensor square = torch::rand({8192, 8192}, device);
    std::vector<torch::Tensor> images;
    for (int i = 0; i < 8; ++i) torch::mm(square, square);
    while (const auto batch = found.next()) images.push_back(batch->images);
    return images;
  };
  const auto whole = batches_of(0), parts = batches_of(7);
  REQUIRE(whole.size() == 10);
  REQUIRE(parts.size() == 10);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    INFO("batch " << i);
    CHECK(torch::equal(whole[i], parts[i]));
  }
}
