// A stream for what goes on beside a step: LibTorch has 32 of a device, and gives them in a circle.
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddprun::trainer {

// Of the device of `steps`, and never that one: with --cuda-graph the steps have one of the same 32
// for the whole run, while each epoch takes new ones.
inline c10::Stream stream_beside(c10::Stream steps) {
  const c10::impl::VirtualGuardImpl guard(steps.device_type());
  c10::Stream drawn = steps;
  while (drawn == steps) {
    drawn = guard.getStreamFromGlobalPool(steps.device(), /*isHighPriority=*/false);
  }
  return drawn;
}

}  // namespace ddprun::trainer
