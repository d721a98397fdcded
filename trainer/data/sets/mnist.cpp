// The whole set in memory, since it is gzipped: sizes are checked before a number is believed.
#include "trainer/data/sets/mnist.h"

#include <fmt/format.h>

#include <optional>

#include "trainer/data/sets/data_file.h"
#include "trainer/data/sets/memory_dataset.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t mnist_classes = 10;
constexpr std::size_t idx_bytes_max = std::size_t{1} << 30;
constexpr std::uint32_t images_magic = 0x803;
constexpr std::uint32_t labels_magic = 0x801;
constexpr std::int64_t side_max = 4096;

std::uint32_t big_endian(const std::vector<std::uint8_t>& bytes, std::size_t offset) {
  return std::uint32_t{bytes[offset]} << 24 | std::uint32_t{bytes[offset + 1]} << 16 |
         std::uint32_t{bytes[offset + 2]} << 8 | std::uint32_t{bytes[offset + 3]};
}

void check_header(const std::vector<std::uint8_t>& bytes, const std::string& name,
                  std::size_t header_bytes, std::uint32_t magic) {
  if (bytes.size() < header_bytes) {
    throw DataError(fmt::format("{} is truncated: {} bytes, but an idx header alone has {}", name,
                                bytes.size(), header_bytes));
  }
  if (const std::uint32_t found = big_endian(bytes, 0); found != magic) {
    throw DataError(
        fmt::format("{} is not the expected idx file: magic number 0x{:08x} at offset "
                    "0, expected 0x{:08x}",
                    name, found, magic));
  }
}

void check_size(const std::vector<std::uint8_t>& bytes, const std::string& name,
                std::size_t expected, const std::string& why) {
  if (bytes.size() == expected) return;
  throw DataError(fmt::format("{} {}: it has {} bytes, expected {} for {}", name,
                              bytes.size() < expected ? "is truncated" : "is too long",
                              bytes.size(), expected, why));
}

struct MnistFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

std::optional<std::filesystem::path> find_file(const std::filesystem::path& folder,
                                               const std::string& name) {
  for (const char* ending : {".gz", ""}) {
    if (auto path = folder / (name + ending); std::filesystem::exists(path)) return path;
  }
  return std::nullopt;
}

MnistFiles find_files(const std::filesystem::path& folder, bool train) {
  const std::string prefix = train ? "train" : "t10k";
  const std::string images_name = prefix + "-images-idx3-ubyte";
  const std::string labels_name = prefix + "-labels-idx1-ubyte";
  const auto images = find_file(folder, images_name);
  const auto labels = find_file(folder, labels_name);
  if (!images) {
    throw MissingPart(
        fmt::format("no {0}.gz or {0} in {1}: give the folder of the MNIST files with --data",
                    images_name, folder.string()));
  }
  if (!labels) {
    throw DataError(
        fmt::format("no {0}.gz or {0} beside {1}: images without labels are of no use "
                    "here",
                    labels_name, images->string()));
  }
  return {*images, *labels};
}

}  // namespace

IdxImages parse_idx_images(std::vector<std::uint8_t> bytes, const std::string& name) {
  constexpr std::size_t header_bytes = 16;
  check_header(bytes, name, header_bytes, images_magic);
  IdxImages images{big_endian(bytes, 4), big_endian(bytes, 8), big_endian(bytes, 12), {}};
  if (images.rows < 1 || images.rows > side_max || images.columns < 1 ||
      images.columns > side_max) {
    throw DataError(fmt::format("{}: images of {}x{} pixels at offset 8, expected sides of 1 to {}",
                                name, images.rows, images.columns, side_max));
  }
  // Below 2^32 * 2^24, so this cannot overflow.
  const auto pixels = static_cast<std::size_t>(images.count * images.rows * images.columns);
  check_size(bytes, name, header_bytes + pixels,
             fmt::format("{} images of {}x{}", images.count, images.rows, images.columns));
  bytes.erase(bytes.begin(), bytes.begin() + header_bytes);
  images.pixels = std::move(bytes);
  return images;
}

std::vector<std::uint8_t> parse_idx_labels(std::vector<std::uint8_t> bytes,
                                           const std::string& name) {
  constexpr std::size_t header_bytes = 8;
  check_header(bytes, name, header_bytes, labels_magic);
  const std::uint32_t count = big_endian(bytes, 4);
  check_size(bytes, name, header_bytes + count, fmt::format("{} labels", count));
  for (std::size_t i = header_bytes; i < bytes.size(); ++i) {
    if (bytes[i] >= mnist_classes) {
      throw DataError(fmt::format("{}: label {} at offset {} (image {}), expected 0 to {}", name,
                                  bytes[i], i, i - header_bytes, mnist_classes - 1));
    }
  }
  bytes.erase(bytes.begin(), bytes.begin() + header_bytes);
  return bytes;
}

std::unique_ptr<Dataset> open_mnist(const std::filesystem::path& folder, bool train) {
  const auto [images_path, labels_path] = find_files(folder, train);
  IdxImages images =
      parse_idx_images(read_data_file(images_path, idx_bytes_max), images_path.string());
  auto labels = parse_idx_labels(read_data_file(labels_path, idx_bytes_max), labels_path.string());
  if (images.count != static_cast<std::int64_t>(labels.size())) {
    throw DataError(fmt::format("{} has {} images, but {} has {} labels", images_path.string(),
                                images.count, labels_path.string(), labels.size()));
  }
  if (images.count == 0) throw DataError(images_path.string() + " holds no images");
  return std::make_unique<MemoryDataset>(MemoryDataset::Contents{
      .shape = {1, images.rows, images.columns},
      .classes = mnist_classes,
      .normalization = {{0.1307F}, {0.3081F}},  // Of the 60,000 training images.
      .description = fmt::format("MNIST {}: {} images of {}x{} from {}", train ? "train" : "test",
                                 images.count, images.rows, images.columns, folder.string()),
      .pixels = std::move(images.pixels),
      .labels = std::move(labels),
  });
}

}  // namespace ddprun::trainer
