// The reduction on its own: the tree's shape, half-precision rounding, special values.
#include "worker/cpu/reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/testing/catch.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace ddprun::worker;

namespace {

template <typename T>
std::vector<T> reduce(const std::vector<std::vector<T>>& ranks, DataType type, ReduceOp op,
                      bool streaming = false) {
  std::vector<T> result(ranks[0].size());
  std::vector<const void*> sources;
  for (const auto& rank : ranks) sources.push_back(rank.data());
  void* destination = result.data();
  reduce_tree(sources, {&destination, 1}, result.size(), type, op, streaming);
  return result;
}

float half_to_float(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(mantissa), -24)
                       : sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

float brain_to_float(std::uint16_t brain) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(brain) << 16);
}

// While it lives, and if `on`, this thread's subnormal float32 count as 0 (FTZ and DAZ), as in a
// trainer.
class FlushedSubnormals {
 public:
  explicit FlushedSubnormals([[maybe_unused]] bool on) {
#if defined(__x86_64__)
    if (on) _mm_setcsr(before_ | 0x8040u);
#endif
  }
  ~FlushedSubnormals() {
#if defined(__x86_64__)
    _mm_setcsr(before_);
#endif
  }
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  const unsigned before_ = _mm_getcsr();
#endif
};

}  // namespace

TEST_CASE("five ranks are added as ((0 + 1) + (2 + 3)) + 4", "[worker][communicator][reduce]") {
  const float big = 16'777'216.0f;  // 2^24: adding 1 to it is lost.
  const auto sum =
      reduce<float>({{big}, {1}, {1}, {-big}, {0.5f}}, DataType::Float32, ReduceOp::Sum);
  CHECK(sum[0] == 1.5f);  // One after the other they would give 0.5.
}

TEST_CASE("every float16 survives being added to zero", "[worker][communicator][reduce]") {
  std::vector<std::uint16_t> all(65536), zeros(65536, 0);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const bool flushed = GENERATE(false, true);
  CAPTURE(flushed);
  const auto sum = [&] {
    const FlushedSubnormals mode(flushed);
    return reduce<std::uint16_t>({all, zeros}, DataType::Float16, ReduceOp::Sum);
  }();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float value = half_to_float(all[i]);
    INFO(i);
    if (std::isnan(value)) {
      REQUIRE(std::isnan(half_to_float(sum[i])));
    } else {
      REQUIRE(half_to_float(sum[i]) == value);
    }
  }
}

TEST_CASE("float16 sums are rounded once, to nearest even", "[worker][communicator][reduce]") {
  std::vector<std::uint16_t> a, b;
  for (std::uint32_t i = 0; i < 200'000; ++i) {
    const std::uint32_t bits = i * 2654435761u;
    a.push_back(static_cast<std::uint16_t>(bits >> 16) & 0xfbff);  // Finite.
    b.push_back(static_cast<std::uint16_t>(bits) & 0xfbff);
  }
  const auto sum = reduce<std::uint16_t>({a, b}, DataType::Float16, ReduceOp::Sum);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float exact = half_to_float(a[i]) + half_to_float(b[i]);
    const float got = half_to_float(sum[i]);
    INFO(half_to_float(a[i]) << " + " << half_to_float(b[i]) << " gave " << got);
    if (std::abs(exact) >= 65520.0f) {
      REQUIRE(std::isinf(got));
      continue;
    }
    // No neighbour is nearer; on a tie the last bit is even.
    const float error = std::abs(got - exact);
    for (const int step : {-1, 1}) {
      const float other = half_to_float(static_cast<std::uint16_t>(sum[i] + step));
      if (!std::isfinite(other)) continue;
      REQUIRE((error < std::abs(other - exact) ||
               (error == std::abs(other - exact) && ((sum[i] & 1) == 0 || other == got))));
    }
  }
}

TEST_CASE("bfloat16 keeps what single additions would lose", "[worker][communicator][reduce]") {
  // 256 + 1 is a tie in bfloat16; 1 + 1 + 256 in float32, rounded once, is 258.
  const std::uint16_t one = 0x3f80, large = 0x4380;
  const auto sum =
      reduce<std::uint16_t>({{large}, {one}, {one}}, DataType::BFloat16, ReduceOp::Sum);
  CHECK(brain_to_float(sum[0]) == 258.0f);
  const auto nan = reduce<std::uint16_t>({{0x7fc1}, {one}}, DataType::BFloat16, ReduceOp::Sum);
  CHECK(std::isnan(brain_to_float(nan[0])));
}

TEST_CASE("NaN wins over every number in max and min", "[worker][communicator][reduce]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::Max, ReduceOp::Min}) {
    const auto result = reduce<float>({{nan, 1, 2}, {1, nan, 3}}, DataType::Float32, op);
    CHECK(std::isnan(result[0]));
    CHECK(std::isnan(result[1]));
    CHECK(result[2] == (op == ReduceOp::Max ? 3.0f : 2.0f));
  }
}

TEST_CASE("max and min are those of any rank, an average is of all",
          "[worker][communicator][reduce]") {
  const std::vector<std::vector<float>> ranks = {{1, 5, 3}, {5, 3, 1}, {3, 1, 5}};
  using Floats = std::vector<float>;
  CHECK(reduce<float>(ranks, DataType::Float32, ReduceOp::Max) == Floats{5, 5, 5});
  CHECK(reduce<float>(ranks, DataType::Float32, ReduceOp::Min) == Floats{1, 1, 1});
  CHECK(reduce<float>(ranks, DataType::Float32, ReduceOp::Average) == Floats{3, 3, 3});
  CHECK(reduce<float>({ranks[0], ranks[1]}, DataType::Float32, ReduceOp::Average) ==
        Floats{3, 4, 2});
  CHECK(reduce<float>({ranks[0]}, DataType::Float32, ReduceOp::Average) == ranks[0]);
  CHECK(reduce<double>({{1}, {2}}, DataType::Float64, ReduceOp::Average)[0] == 1.5);
  std::vector<float> numbers(100), none(100), thirds;
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  for (const float number : numbers) thirds.push_back(number / 3);
  CHECK(reduce<float>({numbers, none, none}, DataType::Float32, ReduceOp::Average) == thirds);
  const auto half =
      reduce<std::uint16_t>({{0x3c00}, {0x4000}}, DataType::Float16, ReduceOp::Average);
  CHECK(half_to_float(half[0]) == 1.5f);
  using Integers = std::vector<std::int32_t>;
  CHECK(reduce<std::int32_t>({{-2, 7}, {3, -9}}, DataType::Int32, ReduceOp::Max) == Integers{3, 7});
  CHECK(reduce<std::int32_t>({{-2, 7}, {3, -9}}, DataType::Int32, ReduceOp::Sum) ==
        Integers{1, -2});
}

TEST_CASE("a streamed result has the same bits, also at odd addresses",
          "[worker][communicator][reduce]") {
  std::vector<std::uint8_t> a(5001), b(5001);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = b[i] = static_cast<std::uint8_t>(i * 7);
  const auto plain = reduce<std::uint8_t>({a, b}, DataType::UInt8, ReduceOp::Sum);
  std::vector<std::uint8_t> room(5020, 0xee);
  for (std::size_t offset = 0; offset < 17; ++offset) {
    const std::vector<const void*> sources{a.data(), b.data()};
    void* destination = room.data() + offset;
    reduce_tree(sources, {&destination, 1}, 5001, DataType::UInt8, ReduceOp::Sum, true);
    CHECK(std::equal(plain.begin(), plain.end(), room.begin() + static_cast<long>(offset)));
    CHECK(room[offset + 5001] == 0xee);
  }
}

TEST_CASE("up to 64 ranks are combined, in their tree's order", "[worker][communicator][reduce]") {
  for (std::size_t world = 1; world <= 64; ++world) {
    std::vector<std::vector<double>> ranks;
    std::vector<double> values;
    for (std::size_t r = 0; r < world; ++r) {
      values.push_back(
          std::ldexp(1.0 + static_cast<double>(r) / 97.0, static_cast<int>(r * 11 % 60)));
      ranks.push_back({values.back()});
    }
    while (values.size() > 1) {
      std::vector<double> next;
      for (std::size_t i = 0; i < values.size(); i += 2) {
        next.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
      }
      values = next;
    }
    CHECK(reduce<double>(ranks, DataType::Float64, ReduceOp::Sum)[0] == values[0]);
  }
}
