// Eight neighbouring numbers of a tensor at a time: of a 16-bit format they are 16 bytes, which is
// what a thread of a GPU can read or write at once. A core: no sockets, threads or clock.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "trainer/kernels/device/number_format.h"

namespace ddprun::trainer {

inline constexpr std::int32_t vector_numbers = 8;

struct alignas(16) VectorWords {
  std::uint32_t word[4];
};

// Whether the memory begins at a multiple of so many bytes; null does.
DDPRUN_HOST_DEVICE inline bool lies_at(const void* memory, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(memory) % bytes == 0;
}

// As it lies in memory.
template <NumberFormat format>
struct NumberVector {
  VectorWords words[format == NumberFormat::Float32 ? 2 : 1];
};

template <NumberFormat format>
DDPRUN_HOST_DEVICE NumberVector<format> load_vector(const void* values, std::int64_t vector) {
  return static_cast<const NumberVector<format>*>(values)[vector];
}

template <NumberFormat format>
DDPRUN_HOST_DEVICE float number_of(const NumberVector<format>& vector, int i) {
  if constexpr (format == NumberFormat::Float32) {
    return std::bit_cast<float>(vector.words[i / 4].word[i % 4]);
  } else {
    const std::uint32_t pair = vector.words[0].word[i / 2];
    return widen16(static_cast<std::uint16_t>(i % 2 == 0 ? pair : pair >> 16), format);
  }
}

template <NumberFormat format>
DDPRUN_HOST_DEVICE void store_vector(void* values, std::int64_t vector,
                                     const float (&from)[vector_numbers]) {
  NumberVector<format> to;
  if constexpr (format == NumberFormat::Float32) {
    for (int i = 0; i < vector_numbers; ++i) {
      to.words[i / 4].word[i % 4] = std::bit_cast<std::uint32_t>(from[i]);
    }
  } else {
    for (int k = 0; k < vector_numbers / 2; ++k) {
      to.words[0].word[k] = std::uint32_t{narrow16(from[2 * k], format)} |
                            std::uint32_t{narrow16(from[2 * k + 1], format)} << 16;
    }
  }
  static_cast<NumberVector<format>*>(values)[vector] = to;
}

// The same where the format is known only when the kernel runs.
DDPRUN_HOST_DEVICE inline void load_numbers(const void* values, std::int64_t vector,
                                            NumberFormat format, float (&to)[vector_numbers]) {
  const auto load = [&](const auto& from) {
    for (int i = 0; i < vector_numbers; ++i) to[i] = number_of(from, i);
  };
  if (format == NumberFormat::Float32) {
    load(load_vector<NumberFormat::Float32>(values, vector));
  } else if (format == NumberFormat::BFloat16) {
    load(load_vector<NumberFormat::BFloat16>(values, vector));
  } else {
    load(load_vector<NumberFormat::Float16>(values, vector));
  }
}

DDPRUN_HOST_DEVICE inline void store_numbers(void* values, std::int64_t vector, NumberFormat format,
                                             const float (&from)[vector_numbers]) {
  if (format == NumberFormat::Float32) {
    store_vector<NumberFormat::Float32>(values, vector, from);
  } else if (format == NumberFormat::BFloat16) {
    store_vector<NumberFormat::BFloat16>(values, vector, from);
  } else {
    store_vector<NumberFormat::Float16>(values, vector, from);
  }
}

// What is left of a value that is stored.
template <NumberFormat format>
DDPRUN_HOST_DEVICE float rounded(float value) {
  if constexpr (format == NumberFormat::Float32) return value;
  return widen16(narrow16(value, format), format);
}

}  // namespace ddprun::trainer
