// Calls, memory and the watchdog's abort, in several threads.
#include "worker/nccl/nccl_handle.h"

#include <thread>

#include "tests/testing/catch.h"
#include "tests/worker/nccl/fake_device.h"

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

  std::thread watchdog([&] { handle->abort(); });
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
  watchdog.join();
  user.join();
  CHECK(freed_after_end);
}

TEST_CASE("memory whose release waits for a kernel does not keep NCCL from being aborted",
          "[worker][cuda]") {
  FakeDevice fake;
  Happening freeing, aborted;
  bool kernel_ended = false;
  fake.on_free = [&] {  // As cudaFree waits for a kernel that waits for a dead peer.
    freeing.happen();
    kernel_ended = aborted.wait();
  };
  fake.on_abort = [&] { aborted.happen(); };
  const auto handle = start_nccl(fake);
  auto memory = handle->allocate(1000);

  std::thread user([&] { memory.reset(); });
  CHECK(freeing.wait());
  handle->abort();
  user.join();
  CHECK(kernel_ended);
}

TEST_CASE("a communicator is ended once, and memory outlives it", "[worker][cuda]") {
  FakeDevice fake;
  int aborts = 0, frees = 0;
  fake.on_abort = [&] { ++aborts; };
  fake.on_free = [&] { ++frees; };
  auto handle = start_nccl(fake);
  auto memory = handle->allocate(1000);
  handle->abort();
  handle->abort();
  handle->finish(NcclHandle::Clock::now(), [] { return true; });
  handle.reset();
  memory.reset();
  CHECK(aborts == 1);
  CHECK(frees == 1);
}
