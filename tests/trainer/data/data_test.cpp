// MNIST, CIFAR-10 and synthetic data: what is read, and what a damaged file is answered with.
#include <zlib.h>

#include <cctype>

#include "tests/testing/catch.h"
#include "tests/trainer/data/made_up_sets.h"
#include "tests/trainer/scratch.h"
#include "trainer/data/sets/cifar10.h"
#include "trainer/data/sets/data_file.h"
#include "trainer/data/sets/mnist.h"
#include "trainer/data/sets/synthetic.h"

using namespace ddprun::trainer;

namespace {

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

std::string images_error(const std::string& bytes) {
  return message_of<DataError>([&] { parse_idx_images(bytes_of(bytes), "images"); });
}

std::string labels_error(const std::string& bytes) {
  return message_of<DataError>([&] { parse_idx_labels(bytes_of(bytes), "labels"); });
}

}  // namespace

TEST_CASE("MNIST is read from plain and from gzipped files alike", "[trainer][data]") {
  const ScratchFolder folder;
  write_bytes(folder / "train-images-idx3-ubyte", idx_images(3, 2));
  write_gzip(folder / "train-labels-idx1-ubyte.gz", idx_labels({7, 0, 9}));

  const auto dataset = open_mnist(folder.path(), /*train=*/true);

  REQUIRE(dataset->size() == 3);
  CHECK(dataset->shape().bytes() == 4);
  CHECK(read_planes(*dataset, 2) == std::vector<std::uint8_t>{8, 9, 10, 11});
  CHECK(read_planes(*dataset, 0) == std::vector<std::uint8_t>{0, 1, 2, 3});
  CHECK(dataset->label(2) == 9);
  CHECK(dataset->label(0) == 7);
}

TEST_CASE("the MNIST files of the repository are whole and as expected", "[trainer][data]") {
  const std::filesystem::path folder = DDPRUN_SOURCE_DIR "/data/mnist";
  CHECK(verify_checksums(folder) == 4);

  const auto train = open_mnist(folder, true);
  const auto test = open_mnist(folder, false);

  CHECK(train->size() == 60'000);
  CHECK(test->size() == 10'000);
  CHECK(train->label(0) == 5);
  CHECK(train->label(1) == 0);
  CHECK(train->label(2) == 4);
}

TEST_CASE("a damaged idx file is refused with the place of the damage", "[trainer][data]") {
  const std::string images = idx_images(3, 2);
  CHECK(contains(images_error(images.substr(0, 10)), "truncated"));
  CHECK(contains(images_error(images.substr(0, images.size() - 1)), "expected 28"));
  CHECK(contains(images_error(images + "x"), "too long"));
  CHECK(contains(images_error(idx_labels("abc") + std::string(8, 'x')), "0x00000801"));
  CHECK(contains(images_error(big_endian(0x803) + big_endian(0xffffffff) + big_endian(0xffffffff) +
                              big_endian(0xffffffff)),
                 "offset 8"));
  CHECK(images_error("") != "");
  for (const auto& [rows, columns, is_good] :
       {std::tuple(1U, 4096U, true), std::tuple(4096U, 1U, true), std::tuple(0U, 1U, false),
        std::tuple(1U, 0U, false), std::tuple(4097U, 1U, false), std::tuple(1U, 4097U, false)}) {
    const std::string none =
        big_endian(0x803) + big_endian(0) + big_endian(rows) + big_endian(columns);
    CHECK(images_error(none).empty() == is_good);
  }
  CHECK(contains(labels_error(idx_images(2, 2)), "0x00000803"));
  CHECK(contains(labels_error(idx_labels({1, 2, 10})), "label 10 at offset 10 (image 2)"));
  CHECK(contains(labels_error(idx_labels({1, 2}).substr(0, 9)), "expected 10"));
}

TEST_CASE("no cut or changed header byte makes the idx reader misbehave", "[trainer][data]") {
  const std::string images = idx_images(2, 3);
  for (std::size_t length = 0; length < images.size(); ++length) {
    CHECK(images_error(images.substr(0, length)) != "");
  }
  for (std::size_t at = 0; at < 16; ++at) {
    for (const int value : {0x00, 0x7f, 0xff}) {
      std::string changed = images;
      changed[at] = static_cast<char>(value);
      if (changed != images) CHECK(images_error(changed) != "");
    }
  }
}

TEST_CASE("MNIST images and labels of different number are refused", "[trainer][data]") {
  const ScratchFolder folder;
  write_bytes(folder / "t10k-images-idx3-ubyte", idx_images(3, 2));
  write_bytes(folder / "t10k-labels-idx1-ubyte", idx_labels({1, 2}));

  const std::string message = message_of<DataError>([&] { open_mnist(folder.path(), false); });

  CHECK(contains(message, "3 images"));
  CHECK(contains(message, "2 labels"));
  CHECK(contains(message_of<DataError>([&] { open_mnist(folder.path(), true); }),
                 "train-images-idx3-ubyte"));
  write_bytes(folder / "train-images-idx3-ubyte", idx_images(0, 2));
  CHECK(contains(message_of<DataError>([&] { open_mnist(folder.path(), true); }),
                 "no train-labels-idx1-ubyte.gz"));
  write_bytes(folder / "train-labels-idx1-ubyte", idx_labels(""));
  CHECK(
      contains(message_of<DataError>([&] { open_mnist(folder.path(), true); }), "holds no images"));
}

TEST_CASE("a gzip file that ends early or is damaged is refused", "[trainer][data]") {
  const ScratchFolder folder;
  const auto path = folder / "images.gz";
  write_gzip(path, idx_images(50, 20));
  const std::string whole = content_of(path);

  write_bytes(path, whole.substr(0, whole.size() / 2));
  CHECK(contains(message_of<DataError>([&] { read_data_file(path, 1 << 20); }), path.string()));

  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 0x55;
  write_bytes(path, damaged);
  CHECK(contains(message_of<DataError>([&] { read_data_file(path, 1 << 20); }), path.string()));

  write_bytes(path, whole);
  CHECK(contains(message_of<DataError>([&] { read_data_file(path, 1000); }), "longer than 1000"));
  CHECK(contains(message_of<DataError>([&] { read_data_file(folder / "none", 9); }), "none"));
  CHECK(contains(message_of<DataError>([&] { read_data_file(folder.path(), 9); }), "folder"));
}

TEST_CASE("a file whose SHA-256 is not the listed one is named", "[trainer][data]") {
  const ScratchFolder folder;
  CHECK(verify_checksums(folder.path()) == 0);
  write_bytes(folder / "abc", "abc");
  const std::string sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  write_bytes(folder / "SHA256SUMS", sum + "  abc\n");  // FIPS 180-2, appendix B.1.
  CHECK(verify_checksums(folder.path()) == 1);

  write_bytes(folder / "a b  c", "abc");
  write_bytes(folder / "SHA256SUMS", sum + "  abc\n" + sum + " *a b  c\r\n\n");
  CHECK(verify_checksums(folder.path()) == 2);

  // As other programs write it, and people.
  std::string upper = sum;
  for (char& digit : upper) digit = static_cast<char>(std::toupper(digit));
  write_bytes(folder / "SHA256SUMS",
              "# of 2012\n" + upper + "  abc\nSHA256 (a b  c) = " + sum + "\n");
  CHECK(verify_checksums(folder.path()) == 2);
  for (const std::string& line :
       std::vector<std::string>{"abc", "  abc", "abc  " + sum, sum, sum + "  ", sum + "0  abc",
                                "MD5 (abc) = " + sum, "SHA256 (abc) = 12", "SHA256 () = " + sum}) {
    write_bytes(folder / "SHA256SUMS", sum + "  abc\n" + line + "\n");
    const std::string refused = message_of<DataError>([&] { verify_checksums(folder.path()); });
    INFO(line);
    CHECK(contains(refused, "line 2 is not one of sha256sum"));
  }

  write_bytes(folder / "SHA256SUMS", sum + "  abc\n");
  write_bytes(folder / "abc", "abd");

  const std::string message = message_of<DataError>([&] { verify_checksums(folder.path()); });
  CHECK(contains(message, (folder / "abc").string()));
  CHECK(contains(message, sum));
}

TEST_CASE("what cannot be read is not taken for a file with another sum", "[trainer][data]") {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "abc");
  write_bytes(folder / "SHA256SUMS", std::string(64, '0') + "  abc\n");
  const std::string refused = "cannot read " + (folder / "abc").string() + ": Is a directory";
  CHECK(message_of<DataError>([&] { verify_checksums(folder.path()); }) == refused);
  CHECK(message_of<DataError>([&] { md5_of(folder / "abc"); }) == refused);
  CHECK(contains(message_of<DataError>([&] { md5_of(folder / "none"); }), "cannot open "));
}

TEST_CASE("CIFAR-10 takes the batches that are there and says how many images", "[trainer][data]") {
  const ScratchFolder folder;
  write_bytes(folder / "data_batch_1.bin", cifar_records({1, 2}));
  write_bytes(folder / "data_batch_4.bin", cifar_records({3}));

  const auto dataset = open_cifar10(folder.path(), true);

  CHECK(dataset->size() == 3);
  CHECK(contains(dataset->description(), "3 images of 32x32 in 2 files"));
  CHECK(contains(dataset->description(), "the full set has 50000"));
  CHECK(dataset->label(2) == 3);
  CHECK(read_planes(*dataset, 2) == std::vector<std::uint8_t>(3072, 4));
  CHECK(contains(message_of<DataError>([&] { open_cifar10(folder.path(), false); }),
                 "test_batch.bin"));
}

TEST_CASE("a damaged CIFAR-10 file is refused with the place of the damage", "[trainer][data]") {
  const ScratchFolder folder;
  const auto error = [&](const std::string& bytes) {
    write_bytes(folder / "data_batch_1.bin", bytes);
    return message_of<DataError>([&] { open_cifar10(folder.path(), true); });
  };
  CHECK(contains(error(cifar_records({1, 2}).substr(0, 4000)), "offset 3073"));
  CHECK(contains(error(cifar_records({1, 10})), "label 10 at offset 3073"));
  CHECK(contains(error(""), "0 bytes"));
}

TEST_CASE("synthetic images depend on the seed and the index alone", "[trainer][data]") {
  const SyntheticOptions options{.size = 100, .shape = {3, 5, 7}, .classes = 10, .seed = 4};
  const SyntheticDataset dataset(options);
  const std::vector<std::uint8_t> pixels = read_planes(dataset, 99);
  read_planes(dataset, 3);

  CHECK(pixels.size() == 105);
  CHECK(read_planes(SyntheticDataset(options), 99) == pixels);
  CHECK(SyntheticDataset(options).label(99) == dataset.label(99));
  SyntheticOptions other = options;
  other.seed = 5;
  CHECK(read_planes(SyntheticDataset(other), 99) != pixels);
}
