// Which batch would fit, from measured bytes.
#include "trainer/report/memory_plan.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::trainer;

namespace {

constexpr std::int64_t mib = 1 << 20;

}  // namespace

TEST_CASE("two small batches tell what an image takes", "[trainer][memory]") {
  std::vector<std::int64_t> asked;
  const auto measured = measure_batches(256, [&](std::int64_t images) {
    asked.push_back(images);
    return 100 * mib + 5 * mib * images;
  });
  REQUIRE(measured);
  CHECK(asked == std::vector<std::int64_t>{16, 16, 32});
  CHECK(measured->fixed == 100 * mib);
  CHECK(measured->per_image == 5 * mib);
  // Never one image, and never more than were asked for.
  asked.clear();
  measure_batches(4, [&](std::int64_t images) { return asked.push_back(images), images; });
  CHECK(asked == std::vector<std::int64_t>{2, 2, 4});
}

TEST_CASE("what the first batch makes that stays is not taken for an image's",
          "[trainer][memory]") {
  std::int64_t made = 100 * mib;
  const auto measured = measure_batches(
      64, [&](std::int64_t images) { return std::exchange(made, 0) + 5 * mib * images; });
  REQUIRE(measured);
  CHECK(measured->per_image == 5 * mib);
}

TEST_CASE("what cannot be measured is not guessed", "[trainer][memory]") {
  CHECK_FALSE(measure_batches(3, [](std::int64_t images) { return images; }));
  CHECK_FALSE(measure_batches(64, [](std::int64_t) { return 7 * mib; }));
  CHECK_FALSE(measure_batches(64, [](std::int64_t images) -> std::int64_t {
    if (images > 4) throw std::runtime_error("out of memory");
    return mib;
  }));
}

TEST_CASE("the batch that fits leaves a tenth, and is smaller than the one that did not",
          "[trainer][memory]") {
  const BatchMemory memory{100 * mib, 5 * mib};
  CHECK(fitting_batch(256, memory, 1000 * mib) == 160);  // (900 - 100) / 5
  CHECK(fitting_batch(256, memory, 960 * mib) == 152);   // 152.8, in eights.
  CHECK(fitting_batch(9, memory, 1000 * mib) == 8);
  CHECK(fitting_batch(8, memory, 1000 * mib) == 7);
  CHECK_FALSE(fitting_batch(256, memory, 100 * mib));
  CHECK_FALSE(fitting_batch(1, memory, 1000 * mib));
  for (std::int64_t images : {2, 7, 8, 9, 100, 1000}) {
    for (std::int64_t free = 0; free < 3000 * mib; free += 37 * mib) {
      const auto fits = fitting_batch(images, memory, free);
      if (!fits) continue;
      CHECK(*fits < images);
      CHECK(memory.fixed + *fits * memory.per_image <= free - free / 10);
    }
  }
}

TEST_CASE("a batch that does not fit when it is tried is followed by smaller ones",
          "[trainer][memory]") {
  const BatchMemory memory{100 * mib, 5 * mib};
  std::vector<std::int64_t> tried;
  const auto at_most = [&](std::int64_t most) {
    tried.clear();
    return [&tried, most](std::int64_t images) {
      tried.push_back(images);
      return images <= most;
    };
  };
  CHECK(fitting_batch(256, memory, 1000 * mib, at_most(160)) == 160);
  CHECK(tried == std::vector<std::int64_t>{160});
  CHECK(fitting_batch(256, memory, 1000 * mib, at_most(140)) == 128);
  CHECK(tried == std::vector<std::int64_t>{160, 144, 128});
  CHECK_FALSE(fitting_batch(256, memory, 1000 * mib, at_most(0)));
  CHECK(tried.back() == 1);
  CHECK(out_of_memory_text("full", 256, {}, memory, 1000 * mib, at_most(140))
            .find("give --batch-size 128,") != std::string::npos);
}

TEST_CASE("running out of memory names the batch that would fit", "[trainer][memory]") {
  const LastingMemory lasting{.weights = 98 * mib, .gradients = 98 * mib};
  CHECK(
      out_of_memory_text("CUDA out of memory.", 256, lasting, BatchMemory{100 * mib, 5 * mib},
                         1000 * mib) ==
      "a batch of 256 images did not fit into the GPU's memory, beside weights 98.0 MiB, gradients "
      "98.0 MiB: it has 1000.0 MiB for them, an image takes 5.0 MiB, and 160 images should fit: "
      "give --batch-size 160, with --accumulate 2 for as many images a step, or --precision bf16. "
      "What was tried: CUDA out of memory.");
  CHECK(out_of_memory_text("CUDA out of memory.", 256, lasting, std::nullopt, 0)
            .find("give a smaller --batch-size") != std::string::npos);
}
