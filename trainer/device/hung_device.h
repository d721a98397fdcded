// Whether the device hangs for which the host waits. CUDA's waits have no limit, and a device that
// hangs ends none of them.
//
//   the host goes on --> nothing
//   it stands still for half of the limit --> the device is asked to do what it has
//   no answer for the other half, and the host still stands --> it hangs
//
// A host that stands still for something else, as data, finds a device that answers. A core: the
// thread that asks is device_watch.h's.
#pragma once

#include <chrono>
#include <optional>

namespace ddprun::trainer {

struct DeviceSigns {
  using TimePoint = std::chrono::steady_clock::time_point;
  TimePoint went_on;                  // When the host did, or the limit became another one.
  TimePoint answered;                 // When the device did; the clock's begin: not yet.
  std::optional<TimePoint> asked_at;  // A question that is not answered yet.
};

enum class DeviceTurn {
  Wait,
  Ask,
  GiveUp,  // It hangs.
};

struct DeviceDecision {
  DeviceTurn turn;
  DeviceSigns::TimePoint look_again;  // To Wait and Ask.
};

DeviceDecision judge_device(const DeviceSigns& signs, std::chrono::milliseconds limit,
                            DeviceSigns::TimePoint now);

}  // namespace ddprun::trainer
