// Sixteen or eight floats at a time, for winograd_*.cpp: a register of AVX-512, or of AVX2. The
// compiler makes several of one elsewhere, well enough for the transforms.
#pragma once

#include <cstdint>

namespace ddprun::trainer {

inline constexpr std::int64_t lanes = 16;

// Both lie at any address of a float, and may alias floats.
using Vector __attribute__((vector_size(64), aligned(4), may_alias)) = float;
using HalfVector __attribute__((vector_size(32), aligned(4), may_alias)) = float;

[[gnu::always_inline]] inline Vector& vector_at(float* p) { return *reinterpret_cast<Vector*>(p); }
[[gnu::always_inline]] inline const Vector& vector_at(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}

}  // namespace ddprun::trainer
