// Two halves of the limit, so that nothing is asked of a device, and no thread is made, while steps
// are done.
#include "trainer/device/hung_device.h"

#include <algorithm>

namespace ddprun::trainer {

DeviceDecision judge_device(const DeviceSigns& signs, std::chrono::milliseconds limit,
                            DeviceSigns::TimePoint now) {
  const std::chrono::milliseconds half = limit / 2;
  if (!signs.asked_at) {
    const auto ask_at = std::max(signs.went_on, signs.answered) + half;
    if (now < ask_at) return {DeviceTurn::Wait, ask_at};
    return {DeviceTurn::Ask, now + half};
  }
  // A host that has gone on since the question waits for work that came after it.
  const auto give_up_at = std::max(*signs.asked_at + half, signs.went_on + limit);
  if (now < give_up_at) return {DeviceTurn::Wait, give_up_at};
  return {DeviceTurn::GiveUp, now};
}

}  // namespace ddprun::trainer
