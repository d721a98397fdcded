// The half-precision formats by their bits, and their conversions to and from float32: rounding to
// nearest even, infinities, NaN and float16's subnormals included, also where the processor flushes
// those of float32 (IEEE 754 binary16; bfloat16 is the upper half of a float32). Free of branches,
// so that loops over them vectorise, and constexpr, so that CUDA kernels may call them too.
#pragma once

#include <bit>
#include <cstdint>

namespace ddprun::worker {

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

constexpr float widen(Half h) {
  const std::uint32_t magnitude = h.bits & 0x7fffu;
  // A subnormal n / 2^24 as 2^-14 + n / 2^24 - 2^-14, all of them normal float32. A shift and a
  // product would do for both kinds, but with a subnormal float32 between them, which is 0 to a
  // processor that has been told to flush those, as trainers do.
  const std::uint32_t less = magnitude < 0x400u ? 0x38800000u : 0u;
  const std::uint32_t exponent = magnitude < 0x400u ? 0x38800000u : 0x38000000u;  // Of 112: rebias.
  const float value =
      std::bit_cast<float>((magnitude << 13) + exponent) - std::bit_cast<float>(less);
  const std::uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;  // Infinity, NaN.
  const std::uint32_t sign = (h.bits & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | special | sign);
}

constexpr float widen(Brain b) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(b.bits) << 16);
}

constexpr Half narrow_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  // Normal results: rebias the exponent, round the 13 lost bits to nearest even.
  const std::uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 lets the floating adder do the rounding at the right place.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;  // Too large, or infinity.
  result = magnitude > 0x7f800000u ? 0x7e00u : result;   // NaN.
  return Half{static_cast<std::uint16_t>(result | sign)};
}

constexpr Brain narrow_brain(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return Brain{static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

}  // namespace ddprun::worker
