// How much of a GPU's memory LibTorch's allocator holds for this process.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace ddprun::trainer {

struct DeviceMemory {
  std::int64_t allocated_bytes = 0;  // In tensors.
  std::int64_t allocated_peak_bytes = 0;
  std::int64_t reserved_bytes = 0;  // Taken from the driver, tensors and cache.
  std::int64_t reserved_peak_bytes = 0;
};

// Nothing for the CPU, whose tensors are in the process's own memory.
std::optional<DeviceMemory> device_memory(c10::Device device);

}  // namespace ddprun::trainer
