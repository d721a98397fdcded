// Through the generic allocator's interface, so that `train` links no CUDA (it is a module).
#include "trainer/report/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace ddprun::trainer {

std::optional<DeviceMemory> device_memory(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return DeviceMemory{.allocated_bytes = stats.allocated_bytes.at(all).current,
                      .allocated_peak_bytes = stats.allocated_bytes.at(all).peak,
                      .reserved_bytes = stats.reserved_bytes.at(all).current,
                      .reserved_peak_bytes = stats.reserved_bytes.at(all).peak};
}

}  // namespace ddprun::trainer
