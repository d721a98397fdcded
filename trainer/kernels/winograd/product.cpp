// A block of results stays in registers while the sum runs over `depth`:
// with AVX-512 up to 6 x 64 of them in 24 of 32 registers, with AVX2 6 x 16 in 12 of 16. Each step
// loads fewer vectors and numbers than it has multiplications, so that the first cache keeps up.
#include "trainer/kernels/winograd/product.h"

#include <algorithm>

#include "trainer/kernels/vector_clones.h"
#include "trainer/kernels/winograd/vector.h"
#include "trainer/kernels/winograd/winograd.h"

// Each for the processors that it is called on, in place of all three clones: without AVX-512 the
// blocks of multiply_wide() do not fit into the registers, and to move them about took g++ most of
// a minute.
#if defined(DDPRUN_HAS_VECTOR_CLONES)
#define DDPRUN_WIDE __attribute__((target("arch=x86-64-v4")))
#define DDPRUN_NARROW __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define DDPRUN_WIDE
#define DDPRUN_NARROW
#endif

namespace ddprun::trainer {
namespace {

constexpr std::int64_t block_rows = 6;

struct Wide {
  using Type = Vector;
  static constexpr std::int64_t size = lanes;
};
// For AVX2, where the compiler would keep vectors of twice the width in memory.
struct Narrow {
  using Type = HalfVector;
  static constexpr std::int64_t size = lanes / 2;
};

// Some rows, and the first `vectors` vectors of each.
template <typename Register, int rows, int vectors>
DDPRUN_INLINE void multiply_block(const WinogradProduct& product, std::int64_t row) {
  using Type = typename Register::Type;
  constexpr std::int64_t size = Register::size;
  const float* a = product.a + row * product.a_row;
  const float* b = product.b;
  float* c = product.c + row * product.c_row;
  const std::int64_t a_row = product.a_row;
  const std::int64_t c_row = product.c_row;
  Type sums[rows][vectors] = {};
  for (std::int64_t left = product.depth; left > 0; left -= product.piece) {
    const float* factors = a;
    for (std::int64_t k = std::min(left, product.piece); k > 0; --k) {
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const float factor = factors[r * a_row];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          sums[r][v] += factor * *reinterpret_cast<const Type*>(b + v * size);
        }
      }
      factors += product.a_step;
      b += product.b_step;
    }
    a += product.a_piece;
  }
  if (product.add) {  // Last: sums of sums lose less than one long sum.
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        sums[r][v] += *reinterpret_cast<const Type*>(c + r * c_row + v * size);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      *reinterpret_cast<Type*>(c + r * c_row + v * size) = sums[r][v];
    }
  }
}

template <typename Register, int vectors>
DDPRUN_INLINE void multiply_rows(const WinogradProduct& product) {
  const std::int64_t blocks = (product.rows + block_rows - 1) / block_rows;
  for (std::int64_t i = 0; i < blocks; ++i) {
    // Even blocks: one of a single row would load each vector for one multiplication.
    const std::int64_t row = product.rows * i / blocks;
    switch (product.rows * (i + 1) / blocks - row) {
      case 6:
        multiply_block<Register, 6, vectors>(product, row);
        break;
      case 5:
        multiply_block<Register, 5, vectors>(product, row);
        break;
      case 4:
        multiply_block<Register, 4, vectors>(product, row);
        break;
      case 3:
        multiply_block<Register, 3, vectors>(product, row);
        break;
      case 2:
        multiply_block<Register, 2, vectors>(product, row);
        break;
      default:
        multiply_block<Register, 1, vectors>(product, row);
        break;
    }
  }
}

// All of x86-64-v4 that multiply_wide() may use.
bool has_wide_registers() {
#if defined(DDPRUN_HAS_VECTOR_CLONES)
  static const bool wide = __builtin_cpu_supports("avx512f") &&
                           __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512cd") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide;
#else
  return false;
#endif
}

}  // namespace

DDPRUN_WIDE
void multiply_wide(const WinogradProduct& product) {
  switch (product.columns / lanes) {
    case 4:
      return multiply_rows<Wide, 4>(product);
    case 3:
      return multiply_rows<Wide, 3>(product);
    case 2:
      return multiply_rows<Wide, 2>(product);
    default:
      return multiply_rows<Wide, 1>(product);
  }
}

DDPRUN_NARROW
void multiply_narrow(const WinogradProduct& product) {
  WinogradProduct part = product;
  for (std::int64_t column = 0; column < product.columns; column += lanes) {
    multiply_rows<Narrow, lanes / Narrow::size>(part);
    part.b += lanes;
    part.c += lanes;
  }
}

void winograd_product(const WinogradProduct& product) {
  has_wide_registers() ? multiply_wide(product) : multiply_narrow(product);
}

bool winograd_is_fast() {
#if defined(DDPRUN_HAS_VECTOR_CLONES)
  static const bool fast = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return fast;
#else
  return false;
#endif
}

}  // namespace ddprun::trainer
