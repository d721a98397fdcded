// CIFAR-10's files: the real ones, and one that changes while it is read.
#include "trainer/data/sets/cifar10.h"

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"
#include "tests/trainer/data/made_up_sets.h"
#include "trainer/data/sample_maker.h"

using namespace ddprun::trainer;

TEST_CASE("the real test images of CIFAR-10 are read where they lie", "[trainer][data]") {
  const auto packed = shared_data("cifar10/test_batch_first1000.bin.xz");
  if (!packed) DDPRUN_SKIP(no_shared_data);
  const ScratchFolder folder;
  const auto file = folder / "test_batch_first1000.bin";
  if (run_command(std::string("xz -d -c") + argument(*packed), file) != 0)
    DDPRUN_SKIP("no xz here");

  const auto dataset = open_cifar10(folder.path(), false);

  REQUIRE(dataset->size() == 1000);
  CHECK(contains(dataset->description(), "the full set has 10000"));
  std::vector<int> counts(10);
  for (std::int64_t i = 0; i < 1000; ++i) ++counts[static_cast<std::size_t>(dataset->label(i))];
  CHECK(counts == std::vector<int>{103, 89, 100, 103, 90, 86, 112, 102, 106, 109});
  const std::string bytes = content_of(file);
  for (const std::int64_t i : {0, 1, 999}) {
    const auto* expected = reinterpret_cast<const std::uint8_t*>(bytes.data()) + i * 3073 + 1;
    CHECK(read_planes(*dataset, i) == std::vector<std::uint8_t>(expected, expected + 3072));
  }
}

TEST_CASE("all five parts of CIFAR-10 are read, and its test set rather than a part of it",
          "[trainer][data]") {
  const ScratchFolder folder;
  for (int number = 1; number <= 5; ++number) {
    write_bytes(folder / ("data_batch_" + std::to_string(number) + ".bin"),
                cifar_records(std::string(1, static_cast<char>(number))));
  }
  write_bytes(folder / "test_batch.bin", cifar_records("\1\2"));
  write_bytes(folder / "test_batch_first1000.bin", cifar_records("\3"));

  const auto train = open_cifar10(folder.path(), true);
  const auto test = open_cifar10(folder.path(), false);

  REQUIRE(train->size() == 5);
  for (std::int64_t i = 0; i < 5; ++i) CHECK(train->label(i) == i + 1);
  REQUIRE(test->size() == 2);
  CHECK(test->label(0) == 1);
}

TEST_CASE("records that are gone while they are read are an error of the file", "[trainer][data]") {
  const ScratchFolder folder;
  write_cifar10(folder.path(), true, 300);  // More than are looked at at once.
  const auto file = folder / "data_batch_1.bin";
  const auto dataset = open_cifar10(folder.path(), true);
  REQUIRE(dataset->size() == 300);
  CHECK(dataset->label(257) == 7);
  CHECK(read_planes(*dataset, 257) == std::vector<std::uint8_t>(3072, 8));
  const auto reader = dataset->make_reader();

  std::filesystem::resize_file(file, 257 * 3073 + 100);  // In the middle of a record.

  reader->open(256);
  CHECK(*reader->decode({}).pixels.data == 7);
  reader->open(257);
  CHECK(message_of<DataError>([&] { reader->decode({}); }) ==
        file.string() +
            " became shorter while it was read: it had 921900 bytes, and ends at offset 789861 "
            "now; put the whole file back and start again");
  // It is not this image's fault: all that follow would be left out with it.
  SampleMaker maker(*dataset, {.transform = {.side = 32, .resize_side = 32},
                               .normalization = dataset->normalization(),
                               .on_bad_image = BadImagePolicy::Omit});
  std::vector<float> sample(3072);
  std::vector<SkippedImage> skipped;
  CHECK(maker.make(256, sample.data(), skipped));
  CHECK_THROWS_AS(maker.make(257, sample.data(), skipped), DataError);
}
