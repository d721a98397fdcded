// On which of several devices a loader's threads work: shown by a device that LibTorch knows and
// that no machine has.
#include <c10/core/impl/FakeGuardImpl.h>

#include <mutex>
#include <vector>

#include "tests/testing/catch.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/sets/memory_dataset.h"

using namespace ddprun::trainer;

namespace {

using Unreal = c10::impl::FakeGuardImpl<c10::DeviceType::PrivateUse1>;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Unreal)

}  // namespace

TEST_CASE("each thread of a loader chooses the device that its batches go to",
          "[trainer][loader]") {
  const MemoryDataset dataset({.shape = {1, 2, 2},
                               .classes = 2,
                               .normalization = {{0.0F}, {1.0F}},
                               .pixels = std::vector<std::uint8_t>(40),
                               .labels = std::vector<std::uint8_t>(10)});
  std::mutex mutex;
  std::vector<int> chosen;  // By each thread, before it makes anything.
  LoaderOptions options{.batch_size = 2, .threads = 3, .device = {c10::DeviceType::PrivateUse1, 5}};
  options.make_decoder = [&] {
    const std::lock_guard lock(mutex);
    chosen.push_back(Unreal::getDeviceIndex());
    return nullptr;
  };
  BatchLoader loader(dataset, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, options);
  while (loader.next()) {
  }
  const std::lock_guard lock(mutex);
  REQUIRE_FALSE(chosen.empty());
  for (const int device : chosen) CHECK(device == 5);
}
