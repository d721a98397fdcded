// One after the other, in the order of CUDA_VISIBLE_DEVICES.
#include "launcher/doctor/gpu_states.h"

#include <algorithm>
#include <cstddef>
#include <sstream>

namespace ddprun::launcher {
namespace {

std::uint64_t told(std::int64_t value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

GpuState state_of(const GpuReading& gpu, std::size_t index) {
  GpuState state{.index = static_cast<int>(index), .answers = gpu.answers};
  state.memory_used = told(gpu.memory_used);
  state.memory_total = told(gpu.memory_total);
  for (const GpuProcess& process : gpu.running) state.pids.push_back(process.pid);
  if (is_slowed(gpu.clock)) state.slowed = slowdown_text(gpu.clock);
  state.memory_errors = told(gpu.memory_errors);
  state.needs_reset = gpu.needs_reset;
  state.is_worn_out = gpu.is_worn_out;
  return state;
}

}  // namespace

std::vector<GpuState> gpu_states(const std::vector<GpuReading>& gpus,
                                 const std::optional<std::string>& visible_devices) {
  std::vector<GpuState> states;
  if (!visible_devices) {
    for (std::size_t i = 0; i < gpus.size(); ++i) states.push_back(state_of(gpus[i], i));
    return states;
  }
  std::istringstream entries(*visible_devices);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (const auto index = gpu_at(gpus, entry)) states.push_back(state_of(gpus[*index], *index));
  }
  return states;
}

}  // namespace ddprun::launcher
