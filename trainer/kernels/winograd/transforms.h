// The five transforms of Winograd's algorithm F(4x4, 3x3), of sixteen channels at a time.
//
// A line of pixels stands for a polynomial; it is evaluated at six points, 0, a, -a, b, -b and
// infinity. Lavin and Gray (arXiv 1509.09308, section 4.1) have a = 1 and b = 2. With a = 5/8 and
// b = 3/2 errors are half as large, because powers up to the fourth stay nearer to 1; those that
// occur are exact too.
#pragma once

#include "trainer/kernels/vector_clones.h"
#include "trainer/kernels/winograd/vector.h"

namespace ddprun::trainer {

inline constexpr int tile_side = 4;

namespace winograd_points {
inline constexpr float a = 0.625F;
inline constexpr float b = 1.5F;
inline constexpr float aa = a * a;
inline constexpr float bb = b * b;
// The weights' transform divides by what the products of differences of points come to.
inline constexpr float zero_scale = 1 / (aa * bb);
inline constexpr float a_scale = 1 / (2 * aa * (aa - bb));
inline constexpr float b_scale = 1 / (2 * bb * (bb - aa));
}  // namespace winograd_points

// Of one line. Elements of `in` lie next to each other, those of `out` `step` apart.

struct InputLine {  // B^T in the paper.
  static constexpr int from = 6;
  static constexpr int to = 6;
  DDPRUN_INLINE static void apply(const Vector* in, Vector* out, int step) {
    using namespace winograd_points;
    const Vector even_a = in[4] - bb * in[2];
    const Vector odd_a = in[3] - bb * in[1];
    const Vector even_b = in[4] - aa * in[2];
    const Vector odd_b = in[3] - aa * in[1];
    out[0] = aa * bb * in[0] + (in[4] - (aa + bb) * in[2]);
    out[step] = even_a + a * odd_a;
    out[2 * step] = even_a - a * odd_a;
    out[3 * step] = even_b + b * odd_b;
    out[4 * step] = even_b - b * odd_b;
    out[5 * step] = aa * bb * in[1] + (in[5] - (aa + bb) * in[3]);
  }
};

struct ResultLine {  // A^T
  static constexpr int from = 6;
  static constexpr int to = 4;
  DDPRUN_INLINE static void apply(const Vector* in, Vector* out, int step) {
    using namespace winograd_points;
    const Vector even_a = in[1] + in[2];
    const Vector odd_a = in[1] - in[2];
    const Vector even_b = in[3] + in[4];
    const Vector odd_b = in[3] - in[4];
    out[0] = in[0] + even_a + even_b;
    out[step] = a * odd_a + b * odd_b;
    out[2 * step] = aa * even_a + bb * even_b;
    out[3 * step] = in[5] + aa * a * odd_a + bb * b * odd_b;
  }
};

struct GradientLine {  // A, the transpose of that of the result.
  static constexpr int from = 4;
  static constexpr int to = 6;
  DDPRUN_INLINE static void apply(const Vector* in, Vector* out, int step) {
    using namespace winograd_points;
    const Vector even_a = in[0] + aa * in[2];
    const Vector odd_a = in[1] + aa * in[3];
    const Vector even_b = in[0] + bb * in[2];
    const Vector odd_b = in[1] + bb * in[3];
    out[0] = in[0];
    out[step] = even_a + a * odd_a;
    out[2 * step] = even_a - a * odd_a;
    out[3 * step] = even_b + b * odd_b;
    out[4 * step] = even_b - b * odd_b;
    out[5 * step] = in[3];
  }
};

struct WeightLine {  // G
  static constexpr int from = 3;
  static constexpr int to = 6;
  DDPRUN_INLINE static void apply(const Vector* in, Vector* out, int step) {
    using namespace winograd_points;
    const Vector even_a = a_scale * in[0] + a_scale * aa * in[2];
    const Vector even_b = b_scale * in[0] + b_scale * bb * in[2];
    out[0] = zero_scale * in[0];
    out[step] = even_a + a_scale * a * in[1];
    out[2 * step] = even_a - a_scale * a * in[1];
    out[3 * step] = even_b + b_scale * b * in[1];
    out[4 * step] = even_b - b_scale * b * in[1];
    out[5 * step] = in[2];
  }
};

struct WeightGradientLine {  // G^T
  static constexpr int from = 6;
  static constexpr int to = 3;
  DDPRUN_INLINE static void apply(const Vector* in, Vector* out, int step) {
    using namespace winograd_points;
    const Vector even_a = in[1] + in[2];
    const Vector odd_a = in[1] - in[2];
    const Vector even_b = in[3] + in[4];
    const Vector odd_b = in[3] - in[4];
    out[0] = zero_scale * in[0] + a_scale * even_a + b_scale * even_b;
    out[step] = a_scale * a * odd_a + b_scale * b * odd_b;
    out[2 * step] = in[5] + a_scale * aa * even_a + b_scale * bb * even_b;
  }
};

// Both ways: source(i, j) and target(i, j) are the addresses of sixteen floats or bfloat16.
template <typename Line, typename Source, typename Target>
DDPRUN_INLINE void transform_square(const Source& source, const Target& target) {
  constexpr int from = Line::from;
  constexpr int to = Line::to;
  Vector half[to * from];
#pragma GCC unroll 6
  for (int j = 0; j < from; ++j) {
    Vector column[from];
#pragma GCC unroll 6
    for (int i = 0; i < from; ++i) load_vector(source(i, j), column[i]);
    Line::apply(column, half + j, from);
  }
#pragma GCC unroll 6
  for (int i = 0; i < to; ++i) {
    Vector row[to];
    Line::apply(half + i * from, row, 1);
#pragma GCC unroll 6
    for (int j = 0; j < to; ++j) store_vector(row[j], target(i, j));
  }
}

}  // namespace ddprun::trainer
