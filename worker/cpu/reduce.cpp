// Works in blocks that stay in the first-level cache: a block of every source is read once, the
// tree is evaluated with a stack of partial results, and the block of the result is written once
// to each destination.
#include "worker/cpu/reduce.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "worker/cpu/half.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// One binary for every x86-64: the loops are compiled three times and the loader picks. The
// sanitizers cannot run before that choice, so they get the plain version.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define DDPRUN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DDPRUN_CLONES
#endif

// The output may be one of the inputs, element for element, which must not stop vectorisation.
#if defined(__clang__)
#define DDPRUN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DDPRUN_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace ddprun::worker {
namespace {

constexpr std::size_t block_elements = 1024;
constexpr int levels_max = 10;
static_assert(tree_ranks_max < (1 << (levels_max + 1)));

struct Add {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {  // Unsigned, because signed overflow is undefined.
      using Bits = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Bits>(a) + static_cast<Bits>(b));
    } else {
      return a + b;
    }
  }
};
struct Larger {
  template <typename T>
  static T apply(T a, T b) {
    return (a > b || a != a) ? a : b;  // Either NaN gives NaN.
  }
};
struct Smaller {
  template <typename T>
  static T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};

// The loops that must be vectorised, spelled out per type: target_clones knows no templates.
#define DDPRUN_COMBINE(name, T, Op)                                        \
  DDPRUN_CLONES void name(const T* a, const T* b, T* out, std::size_t n) { \
    DDPRUN_INDEPENDENT                                                     \
    for (std::size_t i = 0; i < n; ++i) out[i] = Op::apply(a[i], b[i]);    \
  }                                                                        \
  inline void combine(Op, const T* a, const T* b, T* out, std::size_t n) { name(a, b, out, n); }
#define DDPRUN_COMBINE_ALL(suffix, T)     \
  DDPRUN_COMBINE(add_##suffix, T, Add)    \
  DDPRUN_COMBINE(max_##suffix, T, Larger) \
  DDPRUN_COMBINE(min_##suffix, T, Smaller)
DDPRUN_COMBINE_ALL(f32, float)
DDPRUN_COMBINE_ALL(f64, double)
DDPRUN_COMBINE_ALL(i32, std::int32_t)
DDPRUN_COMBINE_ALL(i64, std::int64_t)
DDPRUN_COMBINE_ALL(u8, std::uint8_t)

DDPRUN_CLONES void widen_all(const Half* in, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = widen(in[i]);
}
DDPRUN_CLONES void widen_brain_all(const Brain* in, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = widen(in[i]);
}
inline void widen_all(const Brain* in, float* out, std::size_t n) { widen_brain_all(in, out, n); }
DDPRUN_CLONES void narrow_all(const float* in, Half* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = narrow_half(in[i]);
}
DDPRUN_CLONES void narrow_brain_all(const float* in, Brain* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = narrow_brain(in[i]);
}
inline void narrow_all(const float* in, Brain* out, std::size_t n) { narrow_brain_all(in, out, n); }

DDPRUN_CLONES void multiply(float* x, std::size_t n, float factor) {
  for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}
DDPRUN_CLONES void multiply_f64(double* x, std::size_t n, double factor) {
  for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}
inline void multiply(double* x, std::size_t n, double f) { multiply_f64(x, n, f); }
DDPRUN_CLONES void divide(float* x, std::size_t n, float divisor) {
  for (std::size_t i = 0; i < n; ++i) x[i] /= divisor;
}
DDPRUN_CLONES void divide_f64(double* x, std::size_t n, double divisor) {
  for (std::size_t i = 0; i < n; ++i) x[i] /= divisor;
}
inline void divide(double* x, std::size_t n, double d) { divide_f64(x, n, d); }

// The product with 1/n has the bits of the quotient when n is a power of two, and is faster.
template <typename T>
void average(T* x, std::size_t n, std::size_t ranks) {
  if (std::has_single_bit(ranks)) {
    multiply(x, n, T{1} / static_cast<T>(ranks));
  } else {
    divide(x, n, static_cast<T>(ranks));
  }
}

void copy_streaming(unsigned char* to, const unsigned char* from, std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t head = std::min(bytes, (16 - reinterpret_cast<std::uintptr_t>(to) % 16) % 16);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 16 <= bytes; at += 16) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), value);
  }
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

// Most jobs' case, two ranks on a host, without a second pass; half is exact, so the bits are those
// of average().
DDPRUN_CLONES void average_pair(const float* a, const float* b, float* out, std::size_t n) {
  DDPRUN_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) out[i] = (a[i] + b[i]) * 0.5F;
}

// T: as stored. A: as added.
template <typename T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, Brain>, float, T>;

template <typename T, typename Op>
class TreeReduction {
  using A = Accumulator<T>;
  static constexpr bool widened = !std::is_same_v<T, A>;

 public:
  // The result of one block, in a buffer of this object.
  const T* block(std::span<const void* const> sources, std::size_t first, std::size_t n,
                 bool averaged) {
    if constexpr (std::is_same_v<T, float>) {
      if (averaged && sources.size() == 2) {
        average_pair(leaf(sources[0], first, n, left_), leaf(sources[1], first, n, right_),
                     partial_[0], n);
        return partial_[0];
      }
    }
    const A* result = tree(sources, first, n);
    if constexpr (std::is_floating_point_v<A>) {
      if (averaged) {
        if (result != partial_[0]) std::memcpy(partial_[0], result, n * sizeof(A));
        average(partial_[0], n, sources.size());
        result = partial_[0];
      }
    }
    if constexpr (widened) {
      narrow_all(result, narrowed_, n);
      return narrowed_;
    } else {
      return result;
    }
  }

 private:
  // Source `index` in the format of additions; at an odd address or widened it is copied to `room`.
  const A* leaf(const void* source, std::size_t first, std::size_t n, A* room) {
    const auto* bytes = static_cast<const unsigned char*>(source) + first * sizeof(T);
    const bool aligned = reinterpret_cast<std::uintptr_t>(bytes) % alignof(T) == 0;
    if constexpr (widened) {
      if (!aligned) std::memcpy(narrowed_, bytes, n * sizeof(T));
      widen_all(aligned ? reinterpret_cast<const T*>(bytes) : narrowed_, room, n);
      return room;
    } else {
      if (aligned) return reinterpret_cast<const T*>(bytes);
      std::memcpy(room, bytes, n * sizeof(T));
      return room;
    }
  }

  // Like a binary counter: partial_[l] holds the combination of 2^l ranks when bit l of the number
  // of ranks taken so far is set. What is left at the end is combined from the right, so that
  // neighbours at distance 1, 2, 4 ... meet, as the header says.
  const A* tree(std::span<const void* const> sources, std::size_t first, std::size_t n) {
    if (sources.size() == 1) return leaf(sources[0], first, n, partial_[0]);
    std::size_t taken = 0;
    for (; taken + 2 <= sources.size(); taken += 2) {
      const A* a = leaf(sources[taken], first, n, left_);
      const A* b = leaf(sources[taken + 1], first, n, right_);
      std::size_t carry = taken / 2;
      int level = 0;
      combine(Op{}, a, b, carry % 2 == 0 ? partial_[0] : right_, n);
      for (; carry % 2 == 1; carry /= 2, ++level) {
        A* out = (carry / 2) % 2 == 0 ? partial_[level + 1] : right_;
        combine(Op{}, partial_[level], right_, out, n);
      }
    }
    return combine_rest(sources, first, n, taken);
  }

  const A* combine_rest(std::span<const void* const> sources, std::size_t first, std::size_t n,
                        std::size_t taken) {
    const A* rest = taken < sources.size() ? leaf(sources[taken], first, n, right_) : nullptr;
    int level = 0;
    for (std::size_t pairs = taken / 2; pairs != 0; pairs /= 2, ++level) {
      if (pairs % 2 == 0) continue;
      if (rest != nullptr) combine(Op{}, partial_[level], rest, right_, n);
      rest = rest != nullptr ? right_ : partial_[level];
    }
    return rest;
  }

  alignas(64) A partial_[levels_max][block_elements];
  alignas(64) A left_[block_elements];
  alignas(64) A right_[block_elements];
  alignas(64) T narrowed_[block_elements];
};

template <typename T, typename Op>
void reduce_typed(std::span<const void* const> sources, std::span<void* const> destinations,
                  std::size_t count, bool averaged, bool streaming) {
  TreeReduction<T, Op> reduction;
  for (std::size_t first = 0; first < count; first += block_elements) {
    const std::size_t n = std::min(block_elements, count - first);
    const T* result = reduction.block(sources, first, n, averaged);
    for (void* destination : destinations) {
      auto* to = static_cast<unsigned char*>(destination) + first * sizeof(T);
      const auto* from = reinterpret_cast<const unsigned char*>(result);
      if (streaming) {
        copy_streaming(to, from, n * sizeof(T));
      } else if (to != from) {
        std::memmove(to, from, n * sizeof(T));
      }
    }
  }
#if defined(__x86_64__)
  if (streaming) _mm_sfence();  // Streamed stores are seen before the flag that announces them.
#endif
}

template <typename T>
void reduce_with(std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count, ReduceOp op, bool streaming) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return reduce_typed<T, Add>(sources, destinations, count, op == ReduceOp::Average, streaming);
    case ReduceOp::Max:
      return reduce_typed<T, Larger>(sources, destinations, count, false, streaming);
    case ReduceOp::Min:
      return reduce_typed<T, Smaller>(sources, destinations, count, false, streaming);
  }
}

}  // namespace

void reduce_tree(std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count, DataType type, ReduceOp op, bool streaming) {
  assert(!sources.empty() && sources.size() <= tree_ranks_max);
  switch (type) {
    case DataType::Float32:
      return reduce_with<float>(sources, destinations, count, op, streaming);
    case DataType::Float64:
      return reduce_with<double>(sources, destinations, count, op, streaming);
    case DataType::Float16:
      return reduce_with<Half>(sources, destinations, count, op, streaming);
    case DataType::BFloat16:
      return reduce_with<Brain>(sources, destinations, count, op, streaming);
    case DataType::Int32:
      return reduce_with<std::int32_t>(sources, destinations, count, op, streaming);
    case DataType::Int64:
      return reduce_with<std::int64_t>(sources, destinations, count, op, streaming);
    case DataType::UInt8:
      return reduce_with<std::uint8_t>(sources, destinations, count, op, streaming);
  }
}

}  // namespace ddprun::worker
