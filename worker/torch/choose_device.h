// The GPU of a thread. Each thread begins with GPU 0, and what LibTorch asks CUDA there on its own,
// as of events when it gives out page-locked memory, makes a context on that: half a GiB for each
// rank of another GPU, and an error where a GPU takes one process alone.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include "worker/torch/libtorch.h"

namespace ddprun::worker {

// For the rest of the calling thread. On a CPU there is nothing to choose.
inline void choose_device(torch::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace ddprun::worker
