// CIFAR-10's real files, mapped.
#include "trainer/data/cifar10.h"

#include "tests/testing/catch.h"
#include "tests/trainer/data/data_scratch.h"

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
  const auto& plain = dynamic_cast<const PlainDataset&>(*dataset);
  for (const std::int64_t i : {0, 1, 999}) {
    const auto* expected = reinterpret_cast<const std::uint8_t*>(bytes.data()) + i * 3073 + 1;
    CHECK(read_planes(*dataset, i) == std::vector<std::uint8_t>(expected, expected + 3072));
  }
  // One after the other in one mapping: nothing was copied.
  CHECK(plain.image(999).data - plain.image(0).data == 999 * 3073);
}
