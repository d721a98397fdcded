// In which format a kernel writes numbers, and the conversions themselves.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>

#include "trainer/kernels/device/segments.h"
#include "worker/cpu/half.h"

namespace ddprun::trainer {

enum class NumberFormat : std::int32_t { Float32 = 0, BFloat16 = 1, Float16 = 2 };

// Calls work(Format<format>{}): kernels that are bound by memory know theirs when they are
// compiled.
template <NumberFormat format>
struct Format {};

template <typename Work>
void with_format(NumberFormat format, const Work& work) {
  switch (format) {
    case NumberFormat::Float32:
      return work(Format<NumberFormat::Float32>{});
    case NumberFormat::BFloat16:
      return work(Format<NumberFormat::BFloat16>{});
    case NumberFormat::Float16:
      return work(Format<NumberFormat::Float16>{});
  }
}

// To nearest, ties to even, as LibTorch converts. A NaN stays one, of whatever bits. The device has
// an instruction for what are twenty on the host; step_kernels_cuda.cu knows it by CUDA's
// headers of these formats.
DDPRUN_HOST_DEVICE inline std::uint16_t narrow16(float value, NumberFormat format) {
#if defined(__CUDA_ARCH__)
  return format == NumberFormat::BFloat16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
                                          : __half_as_ushort(__float2half_rn(value));
#else
  return format == NumberFormat::BFloat16 ? worker::narrow_brain(value).bits
                                          : worker::narrow_half(value).bits;
#endif
}

DDPRUN_HOST_DEVICE inline float widen16(std::uint16_t bits, NumberFormat format) {
  if (format == NumberFormat::BFloat16) return worker::widen(worker::Brain{bits});
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  return worker::widen(worker::Half{bits});
#endif
}

DDPRUN_HOST_DEVICE inline void store_number(void* values, std::int64_t i, float value,
                                            NumberFormat format) {
  if (format == NumberFormat::Float32) {
    static_cast<float*>(values)[i] = value;
  } else {
    static_cast<std::uint16_t*>(values)[i] = narrow16(value, format);
  }
}

DDPRUN_HOST_DEVICE inline float load_number(const void* values, std::int64_t i,
                                            NumberFormat format) {
  if (format == NumberFormat::Float32) return static_cast<const float*>(values)[i];
  return widen16(static_cast<const std::uint16_t*>(values)[i], format);
}

}  // namespace ddprun::trainer
