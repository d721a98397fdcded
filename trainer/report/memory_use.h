// How much memory this process holds, by /proc/self/status.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun::trainer {

struct MemoryUse {
  std::int64_t resident_bytes = 0;
  std::int64_t resident_peak_bytes = 0;
};

// Zeros where the lines VmRSS and VmHWM are missing.
MemoryUse parse_memory_use(std::string_view proc_status);

// Of this process, now.
MemoryUse memory_use();

}  // namespace ddprun::trainer
