// See winograd_product.h. A block of up to 6 x 64 results stays in registers (24 of the 32 of
// AVX-512) while the sum runs over `depth`: each step loads four vectors of b and six numbers of a
// for 24 multiplications, which is less than what the first cache delivers.
#include "trainer/kernels/winograd_product.h"

#include <algorithm>

#include "trainer/kernels/vector_clones.h"
#include "trainer/kernels/winograd_vector.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t block_rows = 6;

template <int rows, int vectors>
DDPRUN_INLINE void multiply_block(const WinogradProduct& product, std::int64_t row) {
  const float* a = product.a + row * product.a_row;
  const float* b = product.b;
  float* c = product.c + row * product.c_row;
  const std::int64_t a_row = product.a_row;
  const std::int64_t c_row = product.c_row;
  Vector sums[rows][vectors] = {};
  for (std::int64_t left = product.depth; left > 0; left -= product.piece) {
    const float* factors = a;
    for (std::int64_t k = std::min(left, product.piece); k > 0; --k) {
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const float factor = factors[r * a_row];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) sums[r][v] += factor * vector_at(b + v * lanes);
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
      for (int v = 0; v < vectors; ++v) sums[r][v] += vector_at(c + r * c_row + v * lanes);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) vector_at(c + r * c_row + v * lanes) = sums[r][v];
  }
}

template <int vectors>
DDPRUN_INLINE void multiply_rows(const WinogradProduct& product) {
  const std::int64_t blocks = (product.rows + block_rows - 1) / block_rows;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t row = product.rows * i / blocks;
    switch (product.rows * (i + 1) / blocks - row) {
      case 6:
        multiply_block<6, vectors>(product, row);
        break;
      case 5:
        multiply_block<5, vectors>(product, row);
        break;
      case 4:
        multiply_block<4, vectors>(product, row);
        break;
      case 3:
        multiply_block<3, vectors>(product, row);
        break;
      case 2:
        multiply_block<2, vectors>(product, row);
        break;
      default:
        multiply_block<1, vectors>(product, row);
        break;
    }
  }
}

}  // namespace

DDPRUN_VECTOR_CLONES
void winograd_product(const WinogradProduct& product) {
  switch (product.columns / lanes) {
    case 4:
      multiply_rows<4>(product);
      break;
    case 3:
      multiply_rows<3>(product);
      break;
    case 2:
      multiply_rows<2>(product);
      break;
    default:
      multiply_rows<1>(product);
      break;
  }
}

}  // namespace ddprun::trainer
