// STL-10: column-major planes, labels from 1, whole and partial sets.
#include "trainer/data/sets/stl10.h"

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"

using namespace ddprun::trainer;

namespace {

constexpr std::int64_t plane = 96 * 96;

// The byte of pixel (row, column) of channel c of image i.
std::uint8_t pixel(std::int64_t i, std::int64_t c, std::int64_t row, std::int64_t column) {
  return static_cast<std::uint8_t>(i * 101 + c * 31 + row * 3 + column * 7);
}

std::string images(std::int64_t count) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < 3; ++c) {
      for (std::int64_t column = 0; column < 96; ++column) {
        for (std::int64_t row = 0; row < 96; ++row) {
          bytes += static_cast<char>(pixel(i, c, row, column));
        }
      }
    }
  }
  return bytes;
}

std::string error_of(const std::filesystem::path& folder, bool train = true) {
  return message_of<DataError>([&] { open_stl10(folder, train); });
}

}  // namespace

TEST_CASE("STL-10's columns become rows, and labels begin at 0", "[trainer][data][stl10]") {
  const ScratchFolder folder;
  write_bytes(folder / "train_X.bin", images(3));
  write_bytes(folder / "train_y.bin", "\x01\x0a\x05");

  const auto dataset = open_stl10(folder.path(), true);

  REQUIRE(dataset->size() == 3);
  CHECK(dataset->shape().height == 96);
  CHECK(dataset->label(0) == 0);
  CHECK(dataset->label(1) == 9);
  const auto planes = read_planes(*dataset, 2);
  for (const auto& [c, row, column] :
       std::vector<std::array<std::int64_t, 3>>{{0, 0, 0}, {1, 5, 70}, {2, 95, 0}, {2, 94, 95}}) {
    CHECK(planes[static_cast<std::size_t>(c * plane + row * 96 + column)] ==
          pixel(2, c, row, column));
  }
  CHECK(contains(dataset->description(), "3 images of 96x96"));
  CHECK(contains(dataset->description(), "the full set has 5000"));
}

TEST_CASE("a part of STL-10 is used where the whole is missing", "[trainer][data][stl10]") {
  const ScratchFolder folder;
  write_bytes(folder / "subset2_test_X.bin", images(2));
  write_bytes(folder / "subset2_test_y.bin", "\x01\x02");
  write_bytes(folder / "subset10_test_X.bin", images(1));
  write_bytes(folder / "subset10_test_y.bin", "\x03");
  write_bytes(folder / "subsetx_test_X.bin", "no");
  write_bytes(folder / "subset_test_X.bin", "no");
  write_bytes(folder / "subset12x_test_X.bin", "no");
  write_bytes(folder / "train_y.bin", std::string(5000, '\1'));

  CHECK(open_stl10(folder.path(), false)->label(0) == 2);
  const std::string error = error_of(folder.path());
  CHECK(contains(error, "no train_X.bin"));
  CHECK(contains(error, "the images are missing"));
  write_bytes(folder / "test_X.bin", images(2));
  CHECK(contains(error_of(folder.path(), false), "no test_y.bin"));
}

TEST_CASE("labels of STL-10 are never guessed", "[trainer][data][stl10]") {
  const ScratchFolder folder;
  write_bytes(folder / "train_X.bin", images(3));
  const auto error = [&](const std::string& labels) {
    write_bytes(folder / "train_y.bin", labels);
    return error_of(folder.path());
  };
  CHECK(contains(error("\x01\x02"), "has 3 images"));
  CHECK(contains(error("\x01\x02\x03\x04"), "has 4 labels"));
  CHECK(contains(error(""), "has 0 labels"));
  CHECK(contains(error(std::string("\x01\x00\x02", 3)), "label 0 at offset 1, expected 1 to 10"));
  CHECK(contains(error("\x01\x0b\x02"), "label 11 at offset 1"));
  CHECK(error("\x01\x02\x03") == "");
  write_bytes(folder / "class_names.txt", "a\nb\n");
  CHECK(contains(error_of(folder.path()), "has 2 names, expected 10"));
  write_bytes(folder / "class_names.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n");
  CHECK(error_of(folder.path()) == "");
}

TEST_CASE("a cut STL-10 file is refused with the place", "[trainer][data][stl10]") {
  const ScratchFolder folder;
  const std::string whole = images(2);
  write_bytes(folder / "train_y.bin", "\x01\x02");
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{27'647},
                                   std::size_t{27'649}, whole.size() - 1}) {
    write_bytes(folder / "train_X.bin", whole.substr(0, length));
    CHECK(contains(error_of(folder.path()), "train_X.bin is truncated"));
  }
  std::filesystem::remove(folder / "train_X.bin");
  std::filesystem::create_directory(folder / "train_X.bin");
  CHECK(contains(error_of(folder.path()), "is not a file"));
  CHECK(contains(error_of(folder / "none"), "no train_X.bin"));
}

TEST_CASE("the ten real images of STL-10 have the labels of their classes",
          "[trainer][data][stl10]") {
  const auto folder = shared_data("stl10");
  if (!folder) DDPRUN_SKIP(no_shared_data);

  const auto dataset = open_stl10(*folder, false);

  REQUIRE(dataset->size() == 10);
  CHECK(contains(dataset->description(), "10 images of 96x96"));
  CHECK(contains(dataset->description(), "the full set has 8000"));
  std::vector<bool> seen(10);
  for (std::int64_t i = 0; i < 10; ++i) seen[static_cast<std::size_t>(dataset->label(i))] = true;
  CHECK(seen == std::vector<bool>(10, true));
  // Photographs: neighbours in a row and in a column are alike, which a wrong order would break.
  const auto planes = read_planes(*dataset, 0);
  double across = 0, down = 0, far = 0;
  for (std::size_t i = 0; i + 97 < plane; ++i) {
    across += std::abs(planes[i] - planes[i + 1]);
    down += std::abs(planes[i] - planes[i + 96]);
    far += std::abs(planes[i] - planes[(i * 7919) % plane]);
  }
  CHECK(across < far / 3);
  CHECK(down < far / 3);
  CHECK(contains(error_of(*folder), "no train_X.bin"));
}
