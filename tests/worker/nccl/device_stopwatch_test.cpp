// What is known of a stream's waits, by what its events say.
#include "worker/nccl/device_stopwatch.h"

#include <cstddef>

#include "tests/testing/catch.h"
#include "tests/worker/nccl/fake_device.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::testing::device;
using ddprun::testing::FakeDevice;

namespace {

struct Watched {
  Watched() { device = &fake; }

  void wait() {
    stopwatch.begin(nullptr);
    stopwatch.end(nullptr);
  }
  // The device passes the recording number `recorded`.
  void pass(std::size_t recorded, float at_ms) {
    fake.events.at(fake.recorded.at(recorded)) = cudaSuccess;
    fake.times_ms[fake.recorded.at(recorded)] = at_ms;
  }
  void record_graph() {
    fake.capturing = true;
    wait();
    fake.capturing = false;
  }

  FakeDevice fake;
  DeviceStopwatch stopwatch;
};

}  // namespace

TEST_CASE("18.1: waits of a stream count once the device is past them", "[worker][cuda]") {
  Watched w;
  w.wait();
  w.wait();
  w.pass(0, 10);
  CHECK(w.stopwatch.total() == 0ms);
  w.pass(1, 14);
  CHECK(w.stopwatch.total() == 4ms);
  CHECK(w.stopwatch.total() == 4ms);
  w.pass(2, 20);
  w.pass(3, 21);
  CHECK(w.stopwatch.total() == 5ms);
}

TEST_CASE("18.1: events of waits that are over are used again, whoever asks", "[worker][cuda]") {
  Watched w;
  for (std::size_t step = 0; step < 100; ++step) {  // Of a program that never asks.
    w.wait();
    w.pass(2 * step, 0);
    w.pass(2 * step + 1, 1);
  }
  CHECK(w.fake.events.size() == 2);
  CHECK(w.stopwatch.total() == 100ms);
}

TEST_CASE("18.1: a wait that an exception has left counts for nothing", "[worker][cuda]") {
  Watched w;
  w.stopwatch.end(nullptr);
  CHECK(w.fake.recorded.empty());
  w.stopwatch.begin(nullptr);
  w.wait();
  w.pass(0, 1);
  w.pass(1, 50);
  w.pass(2, 52);
  CHECK(w.stopwatch.total() == 2ms);
}

TEST_CASE("18.1: the wait in a graph stands for that of its replays, once they are done",
          "[worker][cuda]") {
  Watched w;
  w.record_graph();
  CHECK(w.fake.record_flags[w.fake.recorded[0]] == cudaEventRecordExternal);
  CHECK(w.fake.record_flags[w.fake.recorded[1]] == cudaEventRecordExternal);
  w.pass(0, 10);
  w.pass(1, 13);
  CHECK(w.stopwatch.total() == 0ms);  // Not launched.

  w.stopwatch.replayed(nullptr);
  w.stopwatch.replayed(nullptr);
  CHECK(w.stopwatch.total() == 0ms);  // Not done.
  w.pass(3, 0);
  CHECK(w.stopwatch.total() == 6ms);
  CHECK(w.stopwatch.total() == 6ms);

  w.stopwatch.replayed(nullptr);
  w.pass(0, 20);
  w.pass(1, 21);
  w.pass(4, 0);
  CHECK(w.stopwatch.total() == 7ms);

  w.wait();  // A step that is no replay.
  w.pass(5, 30);
  w.pass(6, 35);
  CHECK(w.stopwatch.total() == 12ms);
}

TEST_CASE("18.1: of several graphs the one recorded last is measured", "[worker][cuda]") {
  Watched w;
  w.record_graph();
  w.stopwatch.replayed(nullptr);
  w.fake.capture_id = 2;
  w.record_graph();
  w.fake.end_work();
  w.fake.times_ms[w.fake.recorded[1]] = 100;  // The end of the first graph's wait.
  CHECK(w.stopwatch.total() == 0ms);
  w.fake.times_ms[w.fake.recorded[4]] = 3;
  w.stopwatch.replayed(nullptr);
  w.fake.end_work();
  CHECK(w.stopwatch.total() == 3ms);
  CHECK(w.fake.events.size() == 5);  // The first graph may still launch its own.
}

TEST_CASE("18.1: while a graph is recorded no event is looked at", "[worker][cuda]") {
  Watched w;
  w.wait();
  w.fake.capturing = true;
  w.wait();
  CHECK(w.stopwatch.total() == 0ms);
  CHECK(w.fake.looks_while_capturing == 0);
  w.fake.capturing = false;
}

TEST_CASE("18.1: a look does not spoil a graph that another thread records", "[worker][cuda]") {
  Watched w;
  w.wait();
  w.pass(0, 1);
  w.pass(1, 3);
  w.fake.capturing = true;
  CHECK(w.stopwatch.total() == 2ms);
  w.fake.capturing = false;
  w.wait();  // It went on measuring.
  w.pass(2, 4);
  w.pass(3, 5);
  CHECK(w.stopwatch.total() == 3ms);
}

TEST_CASE("18.1: where CUDA refuses to measure nothing is measured, and nobody hears of it",
          "[worker][cuda]") {
  for (const char* function :
       {"cudaStreamIsCapturing", "cudaEventCreate", "cudaEventRecord", "cudaEventElapsedTime"}) {
    INFO(function);
    Watched w;
    w.fake.failing = function;
    w.wait();
    w.fake.end_work();
    CHECK(w.stopwatch.total() == 0ms);
    CHECK(cudaGetLastError() == cudaSuccess);
    w.fake.failing = nullptr;
    const std::size_t recorded = w.fake.recorded.size();
    w.wait();
    w.stopwatch.replayed(nullptr);
    CHECK(w.fake.recorded.size() == recorded);
  }
}
