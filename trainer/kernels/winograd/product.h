// The products of small matrices that winograd.h is made of.
#pragma once

#include <cstdint>

namespace ddprun::trainer {

inline constexpr std::int64_t strip_channels = 64;  // Columns of a product, at most.

// c = a * b, or c += a * b. In floats: a(row, k) = a[row * a_row + k * a_step], and after each
// `piece` of the depth a_piece further on; b(k, column) = b[k * b_step + column];
// c(row, column) = c[row * c_row + column].
struct WinogradProduct {
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // A multiple of 16, at most 64.
  std::int64_t depth = 0;
  std::int64_t piece = 0;
  const float* a = nullptr;
  std::int64_t a_row = 0;
  std::int64_t a_step = 0;
  std::int64_t a_piece = 0;
  const float* b = nullptr;
  std::int64_t b_step = 0;
  float* c = nullptr;
  std::int64_t c_row = 0;
  bool add = false;
};

void winograd_product(const WinogradProduct& product);

}  // namespace ddprun::trainer
