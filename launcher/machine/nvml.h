// What NVIDIA's driver tells of this machine's GPUs, through its management library (NVML,
// libnvidia-ml.so.1), which comes with the driver and is loaded when it is first asked for.
//
// NVML's reference: docs.nvidia.com/deploy/nvml-api. Its calls take milliseconds, and may hang with
// a GPU that has fallen off the bus: not for an event loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/gpu_clock.h"

namespace ddprun::launcher {

struct GpuProcess {
  int pid = 0;
  std::int64_t bytes = -1;  // Of the GPU's memory; -1: the driver does not say.
};

// A GPU at a moment, in the driver's order, which is that of the PCI bus.
struct GpuReading {
  bool answers = true;              // False: it is lost, and the rest not known.
  std::string uuid;                 // "GPU-..."
  double busy = -1;                 // Share of the last moment with a kernel at work; -1: unknown.
  std::int64_t memory_used = -1;    // By everybody; -1: unknown.
  std::int64_t memory_total = -1;   // -1: unknown.
  std::vector<GpuProcess> running;  // With a CUDA context on it.
  GpuClock clock;
  std::int64_t memory_errors = -1;  // Uncorrectable, since the driver was loaded; -1: unknown.
  bool needs_reset = false;         // To take defective memory out of use.
  bool is_worn_out = false;         // No spare memory is left for that.
};

// Empty where there is no driver, or it refuses. Nothing of the driver is held open afterwards, so
// that a GPU may be reset while somebody watches.
std::vector<GpuReading> read_gpus();

// The one that an entry of CUDA_VISIBLE_DEVICES names: a number, or a UUID's start.
std::optional<std::size_t> gpu_at(const std::vector<GpuReading>& gpus, const std::string& place);

}  // namespace ddprun::launcher
