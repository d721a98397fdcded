// Files of torch.save without LibTorch: what is in them, and that hostile ones cost no more than
// their size.
#include "trainer/formats/torch_file_index.h"

#include "tests/testing/catch.h"
#include "tests/trainer/formats/stored_zip.h"
#include "tests/trainer/scratch.h"
#include "trainer/formats/pickle_reader.h"
#include "trainer/formats/zip_archive.h"

using namespace ddprun::trainer;

namespace {

std::string text(const std::string& value) {
  return std::string("X") + little_endian(value.size(), 4) + value;
}

std::string number(std::int64_t value) {
  return std::string("\x8a\x08") + little_endian(static_cast<std::uint64_t>(value), 8);
}

std::string numbers(const std::vector<std::int64_t>& values) {
  std::string group = "(";
  for (const std::int64_t value : values) group += number(value);
  return group + "t";
}

// A tensor of floats in storage "0".
std::string tensor(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                   std::int64_t offset = 0) {
  return std::string("ctorch._utils\n_rebuild_tensor_v2\n((") + text("storage") +
         "ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(0) + "tQ" + number(offset) +
         numbers(shape) + numbers(strides) + "tR";
}

std::string dict(const std::string& items) { return std::string("\x80\x02}(") + items + "u."; }

std::string torch_file(const std::string& pickle, const std::string& storage) {
  return stored_zip({{"f/data.pkl", pickle}, {"f/data/0", storage}});
}

std::string index_error(const std::string& file) {
  return message_of<std::runtime_error>([&] { index_torch_file(file); });
}

std::string tensor_error(const std::vector<std::int64_t>& shape,
                         const std::vector<std::int64_t>& strides, std::int64_t offset = 0) {
  return index_error(
      torch_file(dict(text("a") + tensor(shape, strides, offset)), std::string(24, 'x')));
}

}  // namespace

TEST_CASE("a file of torch.save is indexed without its tensors", "[trainer][checkpoint]") {
  const std::string file = torch_file(dict(text("a") + tensor({2, 2}, {2, 1}, 1) + text("b") +
                                           tensor({}, {}) + text("none") + tensor({0, 5}, {5, 1})),
                                      "0000111122223333444455556666");

  const std::vector<StoredTensor> tensors = index_torch_file(file);

  REQUIRE(tensors.size() == 3);
  CHECK(tensors[0].name == "a");
  CHECK(tensors[0].storage == "torch FloatStorage");
  CHECK(tensors[0].shape == std::vector<std::int64_t>{2, 2});
  CHECK(tensors[0].bytes == "1111222233334444");  // And not the rest of the storage.
  CHECK(tensors[1].bytes == "0000");
  CHECK(tensors[2].bytes.empty());
}

TEST_CASE("a tensor that is not within its storage is refused", "[trainer][checkpoint]") {
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  CHECK(tensor_error({6}, {1}) == "");
  CHECK(tensor_error({2, 3}, {1, 2}) == "");
  CHECK(tensor_error({0, huge}, {1, 1}) == "");
  CHECK(contains(tensor_error({7}, {1}), "beyond"));
  CHECK(contains(tensor_error({6}, {1}, 1), "beyond"));
  CHECK(contains(tensor_error({1}, {1}, -1), "beyond"));
  CHECK(contains(tensor_error({1}, {1}, huge), "beyond"));
  CHECK(contains(tensor_error({7, 7}, {0, 0}), "'a' has more elements than data"));
  CHECK(contains(tensor_error({64}, {0}), "save its contiguous()"));
  CHECK(tensor_error({6}, {0}) == "");
  CHECK(contains(tensor_error({6}, {}), "beyond"));
  CHECK(contains(tensor_error({3, 3}, {huge, huge}), "beyond"));
  CHECK(contains(tensor_error({huge, huge, huge}, {0, 0, 0}), "beyond"));
  // LibTorch could not even count the elements that it would have without the 0.
  CHECK(contains(tensor_error({0, huge, huge}, {0, 0, 0}), "beyond"));
  CHECK(contains(tensor_error({-1}, {1}), "negative"));
}

TEST_CASE("a name that comes twice in a file of torch.save is refused", "[trainer][checkpoint]") {
  // Recalled names and tensors cost five bytes each, however long they are.
  const std::string item = text(std::string(1000, 'n')) + "q\1" + tensor({6}, {1}) + "q\2";
  CHECK(index_error(torch_file(dict(item), std::string(24, 'x'))) == "");
  CHECK(contains(index_error(torch_file(dict(item + "h\1h\2"), std::string(24, 'x'))),
                 "two entries"));
}

TEST_CASE("the bytes of a storage are summed up once", "[trainer][checkpoint]") {
  // Summed up for each of its tensors, 64 MB would take half an hour and not a moment.
  std::string items;
  for (int i = 0; i < 100'000; ++i) {
    items += text(std::to_string(i)) + (i == 0 ? tensor({1}, {1}) + "q\2" : "h\2");
  }
  const std::string file = torch_file(dict(items), std::string(std::size_t{64} << 20, 'x'));
  CHECK(index_torch_file(file).size() == 100'000);
}

TEST_CASE("entries of an archive that overlap are refused", "[trainer][checkpoint]") {
  std::string file = stored_zip({{"a", std::string(100, 'x')}, {"b", ""}});
  CHECK(message_of<ZipError>([&] { const ZipArchive archive(file); }) == "");
  const std::size_t second = file.rfind("PK\1\2");
  for (const std::size_t size_at : {20, 24}) {
    file.replace(second + size_at, 4, little_endian(250, 4));
  }
  CHECK(contains(message_of<ZipError>([&] { const ZipArchive archive(file); }), "claims"));
}
