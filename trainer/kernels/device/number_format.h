// In which format a kernel writes numbers, and the conversions themselves.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>

#include "trainer/kernels/device/segments.h"
#include "worker/cpu/half.h"

namespace ddprun::trainer {

enum class NumberFormat : std::int32_t { Float32 = 0, BFloat16 = 1, Float16 = 2 };

// To nearest, ties to even, as LibTorch converts. A NaN stays one, of whatever bits.
DDPRUN_HOST_DEVICE inline void store_number(void* values, std::int64_t i, float value,
                                            NumberFormat format) {
  if (format == NumberFormat::Float32) {
    static_cast<float*>(values)[i] = value;
  } else if (format == NumberFormat::BFloat16) {
    static_cast<std::uint16_t*>(values)[i] = worker::narrow_brain(value).bits;
  } else {
    static_cast<std::uint16_t*>(values)[i] = worker::narrow_half(value).bits;
  }
}

DDPRUN_HOST_DEVICE inline float load_number(const void* values, std::int64_t i,
                                            NumberFormat format) {
  if (format == NumberFormat::Float32) return static_cast<const float*>(values)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(values)[i];
  return format == NumberFormat::BFloat16 ? worker::widen(worker::Brain{bits})
                                          : worker::widen(worker::Half{bits});
}

}  // namespace ddprun::trainer
