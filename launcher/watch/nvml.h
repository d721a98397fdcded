// What NVIDIA's driver tells of this machine's GPUs, through its management library (NVML,
// libnvidia-ml.so.1), which comes with the driver and is loaded when it is first asked for.
//
// NVML's reference: docs.nvidia.com/deploy/nvml-api. Its calls take milliseconds, and may hang with
// a GPU that has fallen off the bus: not for an event loop.
#pragma once

#include <vector>

#include "launcher/watch/gpu_use.h"

namespace ddprun::launcher {

// Empty where there is no driver, or it refuses. Nothing of the driver is held open afterwards, so
// that a GPU may be reset while somebody watches.
std::vector<GpuReading> read_gpus();

}  // namespace ddprun::launcher
