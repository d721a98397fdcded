// Which GPUs of this machine a job would have, and how they are, from what NVIDIA's driver tells.
//
// A core: readings in, facts out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/machine_facts.h"
#include "launcher/machine/nvml.h"

namespace ddprun::launcher {

// `visible_devices`: CUDA_VISIBLE_DEVICES, if it is set; what it names that is not there is left
// out, as are parts of GPUs (MIG).
std::vector<GpuState> gpu_states(const std::vector<GpuReading>& gpus,
                                 const std::optional<std::string>& visible_devices);

}  // namespace ddprun::launcher
