// Finds the pair of files of a split, whole or a subset, and refuses pairs that do not match.
#include "trainer/data/sets/stl10.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/sets/record_dataset.h"
#include "worker/parse_number.h"

namespace ddprun::trainer {
namespace {

namespace fs = std::filesystem;

constexpr int stl10_classes = 10;
constexpr std::int64_t side = 96;
constexpr std::int64_t plane_bytes = side * side;
constexpr std::int64_t image_bytes = 3 * plane_bytes;
constexpr std::size_t images_of_full_train = 5'000;
constexpr std::size_t images_of_full_test = 8'000;

struct Stl10Files {
  fs::path images;
  fs::path labels;
};

// The number of images that "subset12_train_X.bin" claims, of the given split.
std::optional<std::int64_t> subset_size(const std::string& name, const std::string& split) {
  const std::string prefix = "subset";
  const std::string ending = "_" + split + "_X.bin";
  if (!name.starts_with(prefix) || !name.ends_with(ending)) return std::nullopt;
  if (name.size() < prefix.size() + ending.size()) return std::nullopt;
  return worker::parse_number<std::int64_t>(
      name.substr(prefix.size(), name.size() - prefix.size() - ending.size()));
}

std::optional<Stl10Files> find_split(const fs::path& folder, const std::string& split) {
  const Stl10Files whole{folder / (split + "_X.bin"), folder / (split + "_y.bin")};
  if (fs::exists(whole.images)) return whole;
  std::int64_t greatest = -1;
  std::string found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const auto size = subset_size(name, split);
    if (!size || *size <= greatest) continue;
    greatest = *size;
    found = name;
  }
  if (greatest < 0) return std::nullopt;
  std::string labels = found;
  labels.replace(labels.size() - std::string("X.bin").size(), 1, "y");
  return Stl10Files{folder / found, folder / labels};
}

Stl10Files find_files(const fs::path& folder, const std::string& split) {
  if (const auto files = find_split(folder, split)) return *files;
  std::string text =
      fmt::format("no {0}_X.bin in {1}: give the folder of STL-10's binary version by --data",
                  split, folder.string());
  if (fs::exists(folder / (split + "_y.bin"))) {
    text += fmt::format("; its labels are there ({}_y.bin), the images are missing", split);
  }
  throw MissingPart(text);
}

void check_class_names(const fs::path& folder) {
  std::ifstream file(folder / "class_names.txt");
  if (!file) return;  // Only names: nothing depends on them.
  int names = 0;
  for (std::string line; std::getline(file, line);) names += line.empty() ? 0 : 1;
  if (names != stl10_classes) {
    throw DataError(fmt::format("{} has {} names, expected {}",
                                (folder / "class_names.txt").string(), names, stl10_classes));
  }
}

void add_images(const Stl10Files& files, RecordDataset::Contents& contents) {
  if (!fs::exists(files.labels)) {
    throw DataError(fmt::format("no {} beside {}: images without labels are of no use here",
                                files.labels.filename().string(), files.images.string()));
  }
  const std::size_t number = contents.files.size();
  const RecordFile& pixels = contents.files.emplace_back(files.images);
  if (pixels.size() == 0 || pixels.size() % image_bytes != 0) {
    throw DataError(fmt::format(
        "{} is truncated or not STL-10's binary version: it has {} bytes, expected a multiple of "
        "{}; the last whole image ends at offset {}",
        files.images.string(), pixels.size(), image_bytes,
        pixels.size() / image_bytes * image_bytes));
  }
  const RecordFile label_file(files.labels);
  const std::int64_t images = pixels.size() / image_bytes;
  if (label_file.size() != images) {
    throw DataError(fmt::format(
        "{} has {} images, but {} has {} labels: it cannot be told which belongs to which; give a "
        "file with one label for each image",
        files.images.string(), images, files.labels.string(), label_file.size()));
  }
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(images));
  label_file.read(0, labels);
  for (std::int64_t i = 0; i < images; ++i) {
    const std::uint8_t label = labels[static_cast<std::size_t>(i)];
    if (label < 1 || label > stl10_classes) {
      throw DataError(fmt::format("{}: label {} at offset {}, expected 1 to {}",
                                  files.labels.string(), label, i, stl10_classes));
    }
    contents.labels.push_back(static_cast<std::uint8_t>(label - 1));
    contents.images.push_back({number, i * image_bytes});
  }
}

}  // namespace

std::unique_ptr<Dataset> open_stl10(const fs::path& folder, bool train) {
  const std::string split = train ? "train" : "test";
  RecordDataset::Contents contents{
      .layout = {nullptr, 3, side, side, plane_bytes, 1, side},  // Column by column.
      .classes = stl10_classes,
      // What PyTorch's tutorial on AWS takes, not the set's own.
      .normalization = {{0.5F, 0.5F, 0.5F}, {0.5F, 0.5F, 0.5F}},
  };
  const Stl10Files files = find_files(folder, split);
  check_class_names(folder);
  add_images(files, contents);
  const std::size_t full = train ? images_of_full_train : images_of_full_test;
  contents.description = fmt::format(
      "STL-10 {}: {} images of 96x96 from {}{}", split, contents.labels.size(),
      files.images.string(),
      contents.labels.size() == full ? "" : fmt::format(" (the full set has {})", full));
  return std::make_unique<RecordDataset>(std::move(contents));
}

}  // namespace ddprun::trainer
