// Images a second that threads read, decode, augment and normalise, without a network that would
// wait for them: what `train`'s loader threads do for each sample.
//
// data_load mnist|cifar10|stl10|imagefolder FOLDER SIDE AUGMENT THREADS PASSES
// data_load make FOLDER COUNT        writes FOLDER/train/<0-9>/*.jpg of 500x375 pixels
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "tests/trainer/data/jpeg_writer.h"
#include "trainer/data/sample_maker.h"
#include "trainer/data/sets/cifar10.h"
#include "trainer/data/sets/image_folder.h"
#include "trainer/data/sets/mnist.h"
#include "trainer/data/sets/stl10.h"

using namespace ddprun::trainer;

namespace {

std::unique_ptr<Dataset> open(const std::string& kind, const std::string& folder) {
  if (kind == "mnist") return open_mnist(folder, true);
  if (kind == "cifar10") return open_cifar10(folder, true);
  if (kind == "stl10") return open_stl10(folder, true);
  if (kind == "imagefolder") return open_image_folder(folder, "", true);
  throw DataError("no such kind: " + kind);
}

void make_images(const std::filesystem::path& folder, int count) {
  for (int i = 0; i < count; ++i) {
    const auto path = folder / "train" / std::to_string(i % 10);
    std::filesystem::create_directories(path);
    std::ofstream(path / (std::to_string(i) + ".jpg"), std::ios::binary)
        << jpeg({.width = 500, .height = 375, .quality = 85});
  }
}

// Every thread makes its share of every pass into the same place again and again, as into a batch.
double images_per_second(const Dataset& dataset, const SampleOptions& options, int threads,
                         int passes) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<std::int64_t> next = 0;
  const std::int64_t all = dataset.size() * passes;
  constexpr std::int64_t block = 64;
  const std::int64_t floats =
      dataset.shape().channels * options.transform.side * options.transform.side;
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      SampleMaker maker(dataset, options);
      std::vector<float> batch(static_cast<std::size_t>(block * floats));
      std::vector<SkippedImage> skipped;
      for (std::int64_t at = next.fetch_add(block); at < all; at = next.fetch_add(block)) {
        for (std::int64_t k = 0; k < block && at + k < all; ++k) {
          maker.make((at + k) * 7919 % dataset.size(), batch.data() + k * floats, skipped);
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(all) / seconds.count();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "make") {
    make_images(arguments[1], std::atoi(argv[3]));
    return 0;
  }
  if (arguments.size() != 6) {
    std::cerr << "data_load KIND FOLDER SIDE AUGMENT THREADS PASSES, or: make FOLDER COUNT\n";
    return 2;
  }
  const auto has = [&](const char* word) { return arguments[3].find(word) != std::string::npos; };
  try {
    const auto dataset = open(arguments[0], arguments[1]);
    const std::int64_t side = std::atoi(argv[3]);
    const SampleOptions options{
        .transform = {.side = side,
                      .resize_side = arguments[0] == "imagefolder" ? side * 8 / 7 : side,
                      .augment = {.flip = has("flip"),
                                  .pad_crop = has("pad-crop"),
                                  .random_resized_crop = has("random-resized-crop")}},
        .normalization = dataset->normalization(),
        .channels_last = true};
    std::cout << images_per_second(*dataset, options, std::atoi(argv[5]), std::atoi(argv[6]))
              << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "data_load: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
