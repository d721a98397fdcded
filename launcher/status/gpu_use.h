// Which of a machine's GPUs a worker uses, and how busy that is, from what NVIDIA's driver tells.
//
// A core: readings in, a judgement out. The driver names the processes that compute on a GPU, but
// in a container it names none, or by numbers of another pid namespace; then the GPU is the one at
// the worker's place, as torchrun's convention has it (cuda:LOCAL_RANK).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/nvml.h"
#include "launcher/status/job_snapshot.h"

namespace ddprun::launcher {

// A worker with all processes below it.
struct GpuUser {
  std::vector<int> pids;
  bool opened_device = false;  // One of them holds a device file of the driver open.
  std::string place;           // Its entry of CUDA_VISIBLE_DEVICES: a number, or a UUID's start.
};

// The use of each worker, in their order: of several GPUs the one with most of its memory.
std::vector<std::optional<GpuUse>> gpus_of(const std::vector<GpuReading>& gpus,
                                           const std::vector<GpuUser>& workers);

}  // namespace ddprun::launcher
