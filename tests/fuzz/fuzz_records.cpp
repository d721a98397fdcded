// MNIST's, CIFAR-10's and STL-10's files: any bytes, and files of any size, give images and labels
// that are there, or a reason that names the file.
//
// The first byte says which format. MNIST's files are the rest as it is. The others have no header,
// only sizes, and their images are large; so the input says how many whole ones there are, how many
// bytes more or less, and their labels.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/finding.h"
#include "trainer/data/sets/cifar10.h"
#include "trainer/data/sets/mnist.h"
#include "trainer/data/sets/stl10.h"

using namespace ddprun::trainer;
using ddprun::fuzz::require;
namespace fs = std::filesystem;

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t cifar_record_bytes = 1 + 3 * 32 * 32;
constexpr std::size_t stl_image_bytes = 3 * 96 * 96;

// Of this process; goes with it.
const fs::path& folder() {
  struct Folder {
    fs::path path;
    Folder() {
      const fs::path memory = "/dev/shm";  // Where files cost little.
      std::string pattern =
          ((fs::is_directory(memory) ? memory : fs::temp_directory_path()) / "ddprun-fuzz-XXXXXX")
              .string();
      require(::mkdtemp(pattern.data()) != nullptr, "no folder can be made: " + pattern);
      path = pattern;
    }
    ~Folder() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  };
  static const Folder made;
  return made.path;
}

void write_file(const std::string& name, const Bytes& bytes) {
  const int file =
      ::open((folder() / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(
      file >= 0 && ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
      "cannot write " + name);
  ::close(file);
}

void check(const Dataset& dataset) {
  require(dataset.size() > 0 && dataset.classes() == 10, "a set without images, or other classes");
  const std::vector<std::int64_t> some{0, dataset.size() / 2, dataset.size() - 1};
  for (const std::int64_t index : some) {
    require(dataset.label(index) >= 0 && dataset.label(index) < 10, "a label that is no class");
    require(read_planes(dataset, index).size() == static_cast<std::size_t>(dataset.shape().bytes()),
            "an image of another size");
  }
}

void refused_or(const std::string& where, const std::function<void()>& read) {
  try {
    read();
  } catch (const DataError& error) {
    require(std::string_view(error.what()).find(where) != std::string_view::npos,
            std::string("an error names no file: ") + error.what());
  }
}

void mnist(const Bytes& bytes) {
  refused_or("name", [&] {
    const IdxImages images = parse_idx_images(bytes, "name");
    require(images.pixels.size() ==
                static_cast<std::size_t>(images.count * images.rows * images.columns),
            "not all pixels");
  });
  refused_or("name", [&] {
    for (const std::uint8_t label : parse_idx_labels(bytes, "name")) {
      require(label < 10, "a label that is no class");
    }
  });
}

// Up to three records, and up to 127 bytes more or less.
std::size_t bytes_of(std::uint8_t code, std::uint8_t more, std::size_t record_bytes) {
  const auto bytes =
      static_cast<std::int64_t>((code & 3) * record_bytes) + static_cast<std::int8_t>(more);
  return static_cast<std::size_t>(std::max<std::int64_t>(0, bytes));
}

void cifar10(const Bytes& input) {
  Bytes file(bytes_of(input[0], input[1], cifar_record_bytes), 1);
  for (std::size_t i = 2; i < input.size(); ++i) {
    if ((i - 2) * cifar_record_bytes < file.size()) file[(i - 2) * cifar_record_bytes] = input[i];
  }
  write_file("test_batch.bin", file);
  refused_or("test_batch.bin", [] { check(*open_cifar10(folder(), false)); });
}

void stl10(const Bytes& input) {
  write_file("test_X.bin", Bytes(bytes_of(input[0], input[1], stl_image_bytes), 1));
  write_file("test_y.bin", Bytes(input.begin() + 2, input.end()));
  refused_or(folder().string(), [] { check(*open_stl10(folder(), false)); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const Bytes rest(data + 1, data + size);
  switch (data[0] % 3) {
    case 0:
      mnist(rest);
      break;
    case 1:
      cifar10(rest);
      break;
    default:
      stl10(rest);
  }
  return 0;
}
