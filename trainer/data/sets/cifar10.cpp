// Checks every record once at the start; afterwards images are read where they lie.
#include "trainer/data/sets/cifar10.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "trainer/data/sets/record_dataset.h"
#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t cifar10_classes = 10;
constexpr std::int64_t pixel_bytes = 3 * 32 * 32;
constexpr std::int64_t record_bytes = 1 + pixel_bytes;
constexpr std::int64_t label_chunk_bytes = 256 * record_bytes;  // Read at once for their labels.
constexpr std::size_t records_of_full_train = 50'000;
constexpr std::size_t records_of_full_test = 10'000;

std::vector<std::filesystem::path> find_files(const std::filesystem::path& folder, bool train) {
  std::vector<std::filesystem::path> found;
  if (train) {
    for (int number = 1; number <= 5; ++number) {
      const auto path = folder / fmt::format("data_batch_{}.bin", number);
      if (std::filesystem::exists(path)) found.push_back(path);
    }
  } else {
    for (const char* name : {"test_batch.bin", "test_batch_first1000.bin"}) {
      if (found.empty() && std::filesystem::exists(folder / name)) found.push_back(folder / name);
    }
  }
  if (found.empty()) {
    throw MissingPart(fmt::format(
        "no {} in {}: give the folder of CIFAR-10's binary version with "
        "--data (files that end in .xz must be unpacked)",
        train ? "data_batch_1.bin ... data_batch_5.bin" : "test_batch.bin", folder.string()));
  }
  return found;
}

void append_records(const std::filesystem::path& path, RecordDataset::Contents& contents) {
  const std::size_t number = contents.files.size();
  const RecordFile& file = contents.files.emplace_back(path);
  if (file.size() == 0 || file.size() % record_bytes != 0) {
    throw DataError(fmt::format(
        "{} is truncated or not CIFAR-10's binary version: it has {} "
        "bytes, expected a multiple of {}; the last whole record ends at "
        "offset {}",
        path.string(), file.size(), record_bytes, file.size() / record_bytes * record_bytes));
  }
  std::vector<std::uint8_t> records;
  for (std::int64_t offset = 0; offset < file.size(); offset += record_bytes) {
    const std::int64_t in_chunk = offset % label_chunk_bytes;
    if (in_chunk == 0) {
      records.resize(static_cast<std::size_t>(std::min(label_chunk_bytes, file.size() - offset)));
      file.read(offset, records);
    }
    const std::uint8_t label = records[static_cast<std::size_t>(in_chunk)];
    if (label >= cifar10_classes) {
      throw DataError(fmt::format("{}: label {} at offset {} (image {}), expected 0 to {}",
                                  path.string(), label, offset, offset / record_bytes,
                                  cifar10_classes - 1));
    }
    contents.labels.push_back(label);
    contents.images.push_back({number, offset + 1});
  }
}

}  // namespace

std::unique_ptr<Dataset> open_cifar10(const std::filesystem::path& folder, bool train) {
  RecordDataset::Contents contents{
      .layout = view_of_planes(nullptr, 3, 32, 32),
      .classes = cifar10_classes,
      // Of the 50,000 training images, per channel.
      .normalization = {{0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F}},
  };
  const auto files = find_files(folder, train);
  for (const auto& path : files) append_records(path, contents);
  const std::size_t full = train ? records_of_full_train : records_of_full_test;
  contents.description = fmt::format(
      "CIFAR-10 {}: {} images of 32x32 in {} from {}{}", train ? "train" : "test",
      contents.labels.size(), worker::counted(std::ssize(files), "file"), folder.string(),
      contents.labels.size() == full ? "" : fmt::format(" (the full set has {})", full));
  return std::make_unique<RecordDataset>(std::move(contents));
}

}  // namespace ddprun::trainer
