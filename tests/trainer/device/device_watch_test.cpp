// The watch over a device that a test controls, and the words of its end.
#include "trainer/device/device_watch.h"

#include <future>

#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"
#include "trainer/watch_devices.h"

using namespace ddprun::trainer;
using ddprun::testing::contains;
using ddprun::testing::patience;
using namespace std::chrono_literals;

namespace {

// Answers when it is told to; the questions' threads may outlive the case.
struct SilentDevice {
  std::promise<void> answer;
  std::shared_future<void> answered = answer.get_future().share();
  DeviceWatch::Ask ask() {
    return [answered = answered] { answered.wait(); };
  }
};

}  // namespace

TEST_CASE("a host that stands still on a silent device is given up with where it stands",
          "[trainer][device]") {
  SilentDevice device;
  std::promise<DeviceWatch::Hang> given_up;
  DeviceWatch watch(device.ask(), 20ms,
                    [&](const DeviceWatch::Hang& hang) { given_up.set_value(hang); });
  watch.went_on("report", 12);
  auto found = given_up.get_future();
  REQUIRE(found.wait_for(patience(10s)) == std::future_status::ready);
  const DeviceWatch::Hang hang = found.get();
  CHECK(hang.in == "report");
  CHECK(hang.step == 12);
  CHECK(hang.stood >= 20ms);
  CHECK(hang.why.empty());
  device.answer.set_value();
}

TEST_CASE("what a host has failed of is told where the device does not let it end",
          "[trainer][device]") {
  SilentDevice device;
  std::promise<DeviceWatch::Hang> given_up;
  DeviceWatch watch(device.ask(), 20ms,
                    [&](const DeviceWatch::Hang& hang) { given_up.set_value(hang); });
  watch.ending("a peer is gone");
  auto found = given_up.get_future();
  REQUIRE(found.wait_for(patience(10s)) == std::future_status::ready);
  CHECK(found.get().why == "a peer is gone");
  device.answer.set_value();
}

TEST_CASE("a device that answers, or has failed, is asked again and not given up",
          "[trainer][device]") {
  std::promise<void> often;
  std::atomic<int> questions{0};
  bool given_up = false;
  {
    const DeviceWatch watch(
        [&] {
          if (++questions == 3) often.set_value();
          throw std::runtime_error("an illegal memory access was encountered");
        },
        20ms, [&](const DeviceWatch::Hang&) { given_up = true; });
    CHECK(often.get_future().wait_for(patience(10s)) == std::future_status::ready);
  }
  CHECK(!given_up);
}

TEST_CASE("a GPU that hangs is told with what ended the communicator, if something did",
          "[trainer][device]") {
  const DeviceWatch::Hang unknown{.stood = 611s, .in = "report", .step = 7, .why = ""};
  const std::string alone = hung_text(unknown, "cuda:1", {});
  CHECK(contains(alone,
                 "cuda:1 does not answer: what it was given is not done after 611 s (after "
                 "step 7, in report); --collective-timeout and 10 s more"));
  CHECK(contains(alone, "grep Xid"));
  const std::string late = hung_text(unknown, "cuda:1", "all_reduce timed out");
  CHECK(late.starts_with("all_reduce timed out; cuda:1 does not answer"));
  CHECK(!contains(late, "and 10 s more"));
  // What to do is said once.
  CHECK(!contains(hung_text(unknown, "cuda:1", "rank 0 failed: cuda:0 does not answer: it is full"),
                  "Xid"));
  const DeviceWatch::Hang ending{.stood = 10s, .in = "", .step = 0, .why = "a peer is gone"};
  CHECK(hung_text(ending, "cuda:0", {})
            .starts_with("a peer is gone; cuda:0 does not answer: what it was given is not done "
                         "after 10 s. A GPU"));
}
