// Sixteen or eight floats at a time, for winograd_*.cpp: a register of AVX-512, or of AVX2. The
// compiler makes several of one elsewhere, well enough for the transforms. In memory they are
// floats or, of images, bfloat16.
#pragma once

#include <cstdint>

#include "trainer/kernels/vector_clones.h"

namespace ddprun::trainer {

inline constexpr std::int64_t lanes = 16;

// Both lie at any address of a float, and may alias floats.
using Vector __attribute__((vector_size(64), aligned(4), may_alias)) = float;
using HalfVector __attribute__((vector_size(32), aligned(4), may_alias)) = float;

[[gnu::always_inline]] inline Vector& vector_at(float* p) { return *reinterpret_cast<Vector*>(p); }
[[gnu::always_inline]] inline const Vector& vector_at(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}

using VectorBits __attribute__((vector_size(64))) = std::uint32_t;
using SignedBits __attribute__((vector_size(64))) = std::int32_t;
using BFloat16s __attribute__((vector_size(32), aligned(2), may_alias)) = std::uint16_t;

DDPRUN_INLINE void load_vector(const float* from, Vector& to) { to = vector_at(from); }
DDPRUN_INLINE void load_vector(const BFloat16* from, Vector& to) {
  const BFloat16s upper_halves = *reinterpret_cast<const BFloat16s*>(from);
  to = reinterpret_cast<Vector>(__builtin_convertvector(upper_halves, VectorBits) << 16);
}

// Rounds as store() in vector_clones.h does. A NaN is found without comparing: compilers compare
// vectors wider than a register number by number.
DDPRUN_INLINE void store_vector(const Vector& from, float* to) { vector_at(to) = from; }
DDPRUN_INLINE void store_vector(const Vector& from, BFloat16* to) {
  const auto bits = reinterpret_cast<VectorBits>(from);
  const VectorBits rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const auto below_nan = reinterpret_cast<SignedBits>(0x7f800000U - (bits & 0x7fffffffU));
  const VectorBits nan = reinterpret_cast<VectorBits>(below_nan >> 31) & 0x7fc00000U;
  *reinterpret_cast<BFloat16s*>(to) = __builtin_convertvector((rounded | nan) >> 16, BFloat16s);
}

}  // namespace ddprun::trainer
