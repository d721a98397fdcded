// Which of a machine's GPUs a worker uses, and how busy that is, from what NVIDIA's driver tells.
//
// A core: readings in, a judgement out. The driver names the processes that compute on a GPU, but
// in a container it names none, or by numbers of another pid namespace; then the GPU is the one at
// the worker's place, as torchrun's convention has it (cuda:LOCAL_RANK).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/watch/job_snapshot.h"

namespace ddprun::launcher {

struct GpuProcess {
  int pid = 0;
  std::int64_t bytes = -1;  // Of the GPU's memory; -1: the driver does not say.
};

// A GPU at a moment, in the driver's order, which is that of the PCI bus.
struct GpuReading {
  std::string uuid;                 // "GPU-..."
  double busy = -1;                 // Share of the last moment with a kernel at work; -1: unknown.
  std::int64_t memory_used = -1;    // By everybody; -1: unknown.
  std::int64_t memory_total = -1;   // -1: unknown.
  std::vector<GpuProcess> running;  // With a CUDA context on it.
};

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
