// Calls, memory and the watchdog's abort, in several threads.
#include "worker/nccl/nccl_handle.h"

#include <thread>

#include "tests/testing/catch.h"
#include "tests/worker/nccl/fake_device.h"
#include "worker/communicator.h"

using namespace ddprun::worker;
using ddprun::testing::device;
using ddprun::testing::FakeDevice;
using ddprun::testing::Happening;

namespace {

std::shared_ptr<NcclHandle> start_nccl(FakeDevice& fake) {
  device = &fake;
  auto handle = std::make_shared<NcclHandle>(0);
  REQUIRE(handle->start(ncclUniqueId{}, 0, 1) == ncclSuccess);
  return handle;
}

}  // namespace

TEST_CASE("while NCCL aborts a call finds no communicator, and memory stays until the end",
          "[worker][cuda]") {
  FakeDevice fake;
  Happening aborting, may_end, ended;
  fake.on_abort = [&] {
    aborting.happen();
    may_end.wait();
    ended.happen();
  };
  bool freed_after_end = false;
  fake.on_free = [&] { freed_after_end = ended.has_happened(); };
  const auto handle = start_nccl(fake);
  auto memory = handle->allocate(1000);

  handle->abort();
  CHECK(aborting.wait());
  bool called = false;
  handle->call([&](ncclComm_t) {
    called = true;
    return ncclSuccess;
  });
  CHECK_FALSE(called);
  CHECK_FALSE(handle->state());
  CHECK_FALSE(ended.has_happened());  // None of these waited for it.

  std::thread user([&] { memory.reset(); });
  may_end.happen();
  CHECK(handle->wait_for_end());
  user.join();
  CHECK(freed_after_end);
}

TEST_CASE("memory whose release waits for a kernel does not keep NCCL from being aborted",
          "[worker][cuda]") {
  FakeDevice fake;
  Happening waiting, aborted;
  bool kernel_ended = false, freed_after_kernel = false;
  fake.on_abort = [&] { aborted.happen(); };
  const auto handle = start_nccl(fake);
  auto memory = handle->allocate(1000);
  fake.on_synchronize = [&] {  // For a kernel that waits for a dead peer.
    waiting.happen();
    kernel_ended = aborted.wait();
  };
  // Nothing of it is mapped any more when ncclMemFree returns.
  fake.on_free = [&] { freed_after_kernel = kernel_ended; };

  std::thread user([&] { memory.reset(); });
  CHECK(waiting.wait());
  handle->abort();
  user.join();
  CHECK(handle->wait_for_end());
  CHECK(freed_after_kernel);
}

// Its kernel may be launched at any moment: to wait for the device is not enough.
TEST_CASE("memory of a call that was given up while NCCL begins it stays until NCCL has ended",
          "[worker][cuda]") {
  FakeDevice fake;
  Happening may_end, ended;
  std::atomic<int> frees{0};
  bool freed_after_end = false;
  fake.on_abort = [&] {
    may_end.wait();
    ended.happen();
  };
  fake.on_free = [&] {
    ++frees;
    freed_after_end = ended.has_happened();
  };
  device = &fake;
  const auto handle = std::make_shared<NcclHandle>(0, std::chrono::milliseconds{20});
  REQUIRE(handle->start(ncclUniqueId{}, 0, 1) == ncclSuccess);
  auto lost = handle->allocate(1000), kept = handle->allocate(1000);

  handle->leave_call();
  lost.reset();  // Nobody ends it, so that this waits for the time that an end may take.
  CHECK(frees == 0);

  handle->abort();
  may_end.happen();
  CHECK(ended.wait());
  kept.reset();
  CHECK(frees == 1);
  CHECK(freed_after_end);
  fake.free_left_behind();
}

TEST_CASE("a communicator is ended once, and memory outlives it", "[worker][cuda]") {
  FakeDevice fake;
  std::atomic<int> aborts{0};
  int frees = 0;
  fake.on_abort = [&] { ++aborts; };
  fake.on_free = [&] { ++frees; };
  auto handle = start_nccl(fake);
  auto memory = handle->allocate(1000);
  handle->abort();
  handle->abort();
  handle->finish(NcclHandle::Clock::now(), [] { return true; });
  CHECK(handle->wait_for_end());
  handle.reset();
  memory.reset();
  CHECK(aborts == 1);
  CHECK(frees == 1);
}

TEST_CASE("an abort that does not end keeps nobody longer than its time, however much is released",
          "[worker][cuda]") {
  FakeDevice fake;
  Happening graphs_destroyed, ended;
  std::atomic<int> frees{0};
  fake.on_abort = [&] {  // As NCCL waits for graphs that have recorded its calls.
    graphs_destroyed.wait();
    ended.happen();
  };
  fake.on_free = [&] { ++frees; };
  device = &fake;
  const auto handle = std::make_shared<NcclHandle>(0, std::chrono::milliseconds{50});
  REQUIRE(handle->start(ncclUniqueId{}, 0, 1) == ncclSuccess);
  std::vector<std::shared_ptr<void>> memory;
  for (int i = 0; i < 100; ++i) memory.push_back(handle->allocate(1000));

  handle->abort();
  CHECK_FALSE(handle->wait_for_end());
  const auto begun = NcclHandle::Clock::now();
  memory.clear();
  CHECK(NcclHandle::Clock::now() - begun < ddprun::testing::patience(std::chrono::seconds{1}));
  CHECK(frees == 0);  // NCCL may still use it.
  graphs_destroyed.happen();
  CHECK(ended.wait());
  // The thread that ended it has the handle last; what it asks is the fake device's.
  while (handle.use_count() > 1) std::this_thread::yield();
  fake.free_left_behind();
}

TEST_CASE(
    "a device that does not answer keeps nobody longer than its time, however much is "
    "released",
    "[worker][cuda]") {
  FakeDevice fake;
  Happening answers, answered;
  std::atomic<int> frees{0};
  fake.on_free = [&] { ++frees; };
  device = &fake;
  const auto handle =
      std::make_shared<NcclHandle>(0, std::chrono::milliseconds{50}, std::chrono::milliseconds{50});
  REQUIRE(handle->start(ncclUniqueId{}, 0, 1) == ncclSuccess);
  std::vector<std::shared_ptr<void>> memory;
  for (int i = 0; i < 100; ++i) memory.push_back(handle->allocate(1000));
  fake.on_synchronize = [&] {
    answers.wait();
    answered.happen();
  };

  const auto begun = NcclHandle::Clock::now();
  memory.clear();
  CHECK_THROWS_WITH(handle->allocate(1000),
                    "GPU 0 does not answer: what it was given is not done in time");
  CHECK(NcclHandle::Clock::now() - begun < ddprun::testing::patience(std::chrono::seconds{1}));
  CHECK(frees == 0);  // The device may still use it.
  handle->abort();
  CHECK(handle->wait_for_end());
  answers.happen();
  CHECK(answered.wait());
  fake.free_left_behind();
}

TEST_CASE("a full device is told by an error of its own, and leaves none to the next kernel",
          "[worker][cuda]") {
  FakeDevice fake;
  const auto handle = start_nccl(fake);
  fake.full = true;
  CHECK_THROWS_AS(handle->allocate(1000), OutOfMemory);
  CHECK(cudaGetLastError() == cudaSuccess);
  fake.full = false;  // As when LibTorch has given back what it kept.
  CHECK(handle->allocate(1000) != nullptr);
  handle->abort();
  CHECK(handle->wait_for_end());
}
