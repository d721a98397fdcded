// Sixteen floats at a time, for winograd_*.cpp: one register with AVX-512; the compiler makes two
// or four of it elsewhere.
#pragma once

#include <cstdint>

namespace ddprun::trainer {

inline constexpr std::int64_t lanes = 16;

// Lies at any address of a float, and may alias floats.
using Vector __attribute__((vector_size(64), aligned(4), may_alias)) = float;

[[gnu::always_inline]] inline Vector& vector_at(float* p) { return *reinterpret_cast<Vector*>(p); }
[[gnu::always_inline]] inline const Vector& vector_at(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}

}  // namespace ddprun::trainer
