// The reductions of a device with streams: which of them waits for which, and what is measured of
// it. The device is one of the test, which notes what it is asked for.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>
#include <utility>

#include "tests/testing/catch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/reduction_queue.h"
#include "worker/torch/tensor_collectives.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;

namespace {

constexpr auto device_type = c10::DeviceType::PrivateUse1;
constexpr c10::StreamId computing = 0;
constexpr c10::StreamId pooled = 7;

using Log = std::vector<std::string>;

std::string name_of(const c10::Stream& stream) {
  return stream.id() == pooled ? "the pool's" : "the current";
}

// While it lives LibTorch has a device of this type.
class NotingDevice : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit NotingDevice(Log& log) : log_(log) { entry().store(this); }
  ~NotingDevice() override { entry().store(nullptr); }

  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {device_type, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream current() const { return c10::Stream(c10::Stream::UNSAFE, getDevice(), current_); }
  c10::Stream getStream(c10::Device) const override { return current(); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, pooled);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current();
    current_ = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return stream.id() == pooled ? pooled_handle() : computing_handle();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static int somewhere = 0;
    *event = &somewhere;
    log_.push_back("event on " + name_of(stream));
  }
  void block(void*, const c10::Stream& stream) const override {
    log_.push_back(name_of(stream) + " waits");
  }

  static void* pooled_handle() {
    static int pool = 0;
    return &pool;
  }
  static void* computing_handle() {
    static int current = 0;
    return &current;
  }

 private:
  static std::atomic<const c10::impl::DeviceGuardImplInterface*>& entry() {
    return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(device_type)];
  }

  Log& log_;
  mutable c10::StreamId current_ = computing;
};

class NotingCommunicator : public ThreadCommunicator {
 public:
  NotingCommunicator(ThreadWorld& world, Log& log) : ThreadCommunicator(world, 0), log_(log) {}

  void all_reduce(void*, std::size_t, DataType, ReduceOp, Stream stream) override {
    note("all-reduce on", stream);
  }
  void abort(const std::string&) noexcept override { log_.push_back("abort"); }
  void wait_begins(Stream stream) override { note("wait begins on", stream); }
  void wait_ends(Stream stream) override { note("wait ends on", stream); }
  std::chrono::nanoseconds waited() override { return waits; }

  std::chrono::nanoseconds waits{0};

 private:
  void note(const std::string& what, Stream stream) {
    const bool of_pool = stream == NotingDevice::pooled_handle();
    const bool current = stream == NotingDevice::computing_handle();
    log_.push_back(what + (of_pool ? " the pool's" : current ? " the current" : " another"));
  }

  Log& log_;
};

}  // namespace

TEST_CASE("18.1: what is measured is the wait of the stream that computes, and nothing else",
          "[ddp]") {
  Log log;
  const NotingDevice device(log);
  ThreadWorld world(1);
  NotingCommunicator communicator(world, log);
  communicator.waits = 5ms;  // Of a queue before this one.
  const auto queue = reduction_queue_of(communicator, device.getDevice());
  float value = 0;

  queue->wait();
  CHECK(log == Log{});  // Nothing was queued.

  queue->all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum);
  CHECK_FALSE(queue->idle());
  queue->wait();
  CHECK(queue->idle());
  CHECK(log == Log{"event on the current", "the pool's waits", "all-reduce on the pool's",
                   "event on the pool's", "wait begins on the current", "the current waits",
                   "wait ends on the current"});

  CHECK(queue->exposed() == 0ms);
  communicator.waits = 12ms;
  CHECK(queue->exposed() == 7ms);
  CHECK(queue->take_exposed() == 7ms);
  communicator.waits = 13ms;
  CHECK(queue->take_exposed() == 1ms);
  CHECK(queue->exposed() == 8ms);
}

TEST_CASE("a queue with work at hand that outlives its communicator leaves it alone", "[ddp]") {
  const bool outlives = GENERATE(true, false);
  Log log;
  const NotingDevice device(log);
  ThreadWorld world(1);
  std::optional<NotingCommunicator> communicator(std::in_place, world, log);
  auto queue = reduction_queue_of(*communicator, device.getDevice());
  float value = 0;
  queue->all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum);
  log.clear();

  if (outlives) communicator.reset();
  queue.reset();

  CHECK(log == (outlives ? Log{} : Log{"abort"}));
}

TEST_CASE("18.1: what takes more than an all-reduce is queued on the reductions' stream, plainly",
          "[ddp]") {
  Log log;
  const NotingDevice device(log);
  ThreadWorld world(1);
  NotingCommunicator communicator(world, log);
  const auto queue = reduction_queue_of(communicator, device.getDevice());
  const c10::impl::IncludeDispatchKeyGuard autocast(c10::DispatchKey::AutocastCPU);
  bool plain = false;

  queue->run([&](Communicator& peers) {
    plain = !at::GradMode::is_enabled() &&
            c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU);
    log.push_back("current: " + name_of(device.current()));
    peers.all_reduce(nullptr, 0, DataType::Float32, ReduceOp::Sum,
                     current_stream(device.getDevice()));
  });
  CHECK(plain);
  CHECK(log == Log{"event on the current", "the pool's waits", "current: the pool's",
                   "all-reduce on the pool's"});
  CHECK(device.current().id() == computing);
  CHECK_FALSE(queue->idle());

  CHECK_THROWS_AS(queue->run([](Communicator&) { throw std::domain_error("no idea"); }),
                  std::domain_error);
  CHECK_THROWS_AS(queue->wait(), std::domain_error);  // It stays failed.
}
