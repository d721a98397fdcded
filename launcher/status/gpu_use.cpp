// A wrong GPU beside a rank would be worse than none, so a guess needs two grounds: the driver
// names nobody of this job anywhere, and the worker has a GPU open.
#include "launcher/status/gpu_use.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

GpuUse use_of(const std::vector<GpuReading>& gpus, std::size_t index) {
  const GpuReading& gpu = gpus[index];
  return {.index = static_cast<int>(index),
          .busy = gpu.busy,
          .memory_used = gpu.memory_used,
          .memory_total = gpu.memory_total,
          .clock = gpu.clock};
}

// Where the driver names the worker.
std::optional<GpuUse> named_use(const std::vector<GpuReading>& gpus, const GpuUser& worker) {
  std::optional<GpuUse> most;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    GpuUse use = use_of(gpus, i);
    bool is_named = false;
    for (const GpuProcess& process : gpus[i].running) {
      if (std::count(worker.pids.begin(), worker.pids.end(), process.pid) == 0) continue;
      is_named = true;
      if (process.bytes >= 0) {
        use.own_bytes = std::max<std::int64_t>(use.own_bytes, 0) + process.bytes;
      }
    }
    if (is_named && (!most || use.own_bytes > most->own_bytes)) most = use;
  }
  return most;
}

}  // namespace

std::vector<std::optional<GpuUse>> gpus_of(const std::vector<GpuReading>& gpus,
                                           const std::vector<GpuUser>& workers) {
  std::vector<std::optional<GpuUse>> uses;
  bool names_any = false;
  for (const GpuUser& worker : workers) {
    uses.push_back(named_use(gpus, worker));
    names_any = names_any || uses.back();
  }
  if (names_any) return uses;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].opened_device) continue;
    if (const auto index = gpu_at(gpus, workers[i].place)) uses[i] = use_of(gpus, *index);
  }
  return uses;
}

}  // namespace ddprun::launcher
