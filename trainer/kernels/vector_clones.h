// For loops over floats that are memory-bound only if they are vectorised.
#pragma once

#include <bit>
#include <cstdint>

// One binary for every x86-64: a function with this attribute is compiled three times and the
// loader picks. The sanitizers cannot run before that choice, so they get the plain version.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define DDPRUN_HAS_VECTOR_CLONES 1
#define DDPRUN_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DDPRUN_VECTOR_CLONES
#endif

// Before a loop whose output may be one of its inputs, element for element, which must not stop
// vectorisation. Each compiler has its own word, and warns of the other's.
#if defined(__clang__)
#define DDPRUN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DDPRUN_INDEPENDENT _Pragma("GCC ivdep")
#endif

// The clones know no templates; what they call must be part of them.
#define DDPRUN_INLINE [[gnu::always_inline]] inline

namespace ddprun::trainer {

// The upper half of a float, as at::BFloat16 stores it.
struct BFloat16 {
  std::uint16_t bits;
};

DDPRUN_INLINE float load(const float& value) { return value; }
DDPRUN_INLINE float load(const BFloat16& value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

DDPRUN_INLINE void store(float& to, float value) { to = value; }
DDPRUN_INLINE void store(BFloat16& to, float value) {  // To nearest, ties to even.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  to.bits = static_cast<std::uint16_t>((value != value ? 0x7fc00000U : rounded) >> 16);
}

}  // namespace ddprun::trainer
