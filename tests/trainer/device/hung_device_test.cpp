// When a device counts as hung, as a table of moments.
#include "trainer/device/hung_device.h"

#include "tests/testing/catch.h"

using namespace ddprun::trainer;
using namespace std::chrono_literals;

namespace {

constexpr DeviceSigns::TimePoint start{1h};
constexpr std::chrono::milliseconds limit = 20s;

}  // namespace

TEST_CASE("nothing is asked of a device while the host goes on", "[trainer][device]") {
  const DeviceSigns signs{.went_on = start, .answered = {}, .asked_at = {}};
  const DeviceDecision decision = judge_device(signs, limit, start + 9s);
  CHECK(decision.turn == DeviceTurn::Wait);
  CHECK(decision.look_again == start + 10s);
  CHECK(judge_device(signs, limit, start + 10s).turn == DeviceTurn::Ask);
}

TEST_CASE("a device that answers a host that stands still is asked again, and never given up",
          "[trainer][device]") {
  const DeviceSigns signs{.went_on = start, .answered = start + 1h, .asked_at = {}};
  CHECK(judge_device(signs, limit, start + 1h + 9s).turn == DeviceTurn::Wait);
  CHECK(judge_device(signs, limit, start + 1h + 10s).turn == DeviceTurn::Ask);
}

TEST_CASE("a device that does not answer hangs at the limit", "[trainer][device]") {
  const DeviceSigns signs{.went_on = start, .answered = {}, .asked_at = start + 10s};
  CHECK(judge_device(signs, limit, start + 19s).turn == DeviceTurn::Wait);
  CHECK(judge_device(signs, limit, start + 20s).turn == DeviceTurn::GiveUp);
}

TEST_CASE("a question has half of the limit, however long the host has stood",
          "[trainer][device]") {
  // As after an hour without data.
  const DeviceSigns signs{.went_on = start, .answered = start + 1h, .asked_at = start + 1h + 10s};
  CHECK(judge_device(signs, limit, start + 1h + 19s).turn == DeviceTurn::Wait);
  CHECK(judge_device(signs, limit, start + 1h + 20s).turn == DeviceTurn::GiveUp);
}

TEST_CASE("a host that goes on while a question is open has the whole limit again",
          "[trainer][device]") {
  const DeviceSigns signs{.went_on = start + 15s, .answered = {}, .asked_at = start + 10s};
  const DeviceDecision decision = judge_device(signs, limit, start + 34s);
  CHECK(decision.turn == DeviceTurn::Wait);
  CHECK(decision.look_again == start + 35s);
  CHECK(judge_device(signs, limit, start + 35s).turn == DeviceTurn::GiveUp);
}
