// What is found out about work on the device, by its events.
#include "worker/nccl/device_queue.h"

#include "tests/testing/catch.h"
#include "tests/worker/nccl/fake_device.h"
#include "worker/communicator.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::testing::device;
using ddprun::testing::FakeDevice;
using Kind = DeviceQueue::Finding::Kind;

namespace {

const DeviceQueue::Clock::time_point start{1h};

Call call_of(CallKind kind) {
  Call call;
  call.kind = kind;
  return call;
}

struct Queue {
  Queue() { device = &fake; }
  void add(const Call& call) {
    queue.add(call, record_end(queue.take_spare(), nullptr), start + 600s);
  }

  FakeDevice fake;
  SlowWaitTeller slow_waits{{.collective_timeout = 600s, .slow_wait = 30s}};
  DeviceQueue queue{slow_waits};
};

}  // namespace

TEST_CASE("work that is done leaves the queue, up to the first that is not", "[worker][cuda]") {
  Queue q;
  for (const CallKind kind : {CallKind::AllReduce, CallKind::Broadcast, CallKind::AllGather}) {
    q.add(call_of(kind));
  }
  q.fake.events[q.fake.recorded[0]] = cudaSuccess;
  q.fake.events[q.fake.recorded[2]] = cudaSuccess;  // Of another stream.
  CHECK(q.queue.check(start).kind == Kind::Fine);
  CHECK_FALSE(q.queue.empty());

  q.fake.events[q.fake.recorded[1]] = cudaSuccess;
  CHECK(q.queue.check(start).kind == Kind::Fine);
  CHECK(q.queue.empty());

  q.add(call_of(CallKind::Message));
  CHECK(q.fake.events.size() == 3);  // Used again.
}

TEST_CASE("an error of the device is no end of the work, and has CUDA's words", "[worker][cuda]") {
  Queue q;
  q.add(call_of(CallKind::AllReduce));
  q.add(call_of(CallKind::Broadcast));
  q.fake.events[q.fake.recorded[0]] = cudaErrorIllegalAddress;
  q.fake.events[q.fake.recorded[1]] = cudaErrorIllegalAddress;
  for (int look = 0; look < 2; ++look) {
    const auto finding = q.queue.check(start);
    CHECK(finding.kind == Kind::Failed);
    CHECK(finding.call.kind == CallKind::AllReduce);
    CHECK(finding.error == "an illegal memory access was encountered");
  }
}

TEST_CASE("work on the device is told of once when it is slow, and late at its deadline",
          "[worker][cuda]") {
  Queue q;
  q.add(call_of(CallKind::AllReduce));
  CHECK(q.queue.check(start).kind == Kind::Fine);
  CHECK(q.queue.check(start + 29s).kind == Kind::Fine);

  const auto slow = q.queue.check(start + 30s);
  CHECK(slow.kind == Kind::Slow);
  CHECK(slow.call.kind == CallKind::AllReduce);
  CHECK(slow.waited == 30s);
  CHECK(q.queue.check(start + 31s).kind == Kind::Fine);

  CHECK(q.queue.check(start + 599s).kind == Kind::Fine);
  CHECK(q.queue.check(start + 600s).kind == Kind::Late);
}
