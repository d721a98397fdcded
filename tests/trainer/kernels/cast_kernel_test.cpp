// How tensors are shared out between threads, and casts of many at once, for every number: on the
// CPU as loops over the device's own index arithmetic, and on a GPU, where there is one, with the
// bits of these loops.
#include "trainer/kernels/device/cast_kernel.h"

#include <algorithm>
#include <cstring>

#include "tests/testing/catch.h"
#include "tests/trainer/kernels/device_memory.h"
#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;

namespace {

torch::Tensor cast(torch::Device device, const torch::Tensor& values, NumberFormat from,
                   NumberFormat to) {
  const torch::Tensor there = values.to(device);
  const Guarded result(device, torch::zeros({values.numel()}), type_of(to));
  // Tensors of odd sizes one after the other, with empty ones among them, and what is left.
  std::vector<CastSegment> segments;
  std::int64_t begin = 0;
  while (begin < values.numel() && segments.size() < cast_segments_max) {
    const bool last = segments.size() + 1 == cast_segments_max;
    const std::int64_t left = values.numel() - begin;
    const std::int64_t count = last ? left : std::min(odd_sizes[segments.size() % 9], left);
    segments.push_back(
        {static_cast<const char*>(there.data_ptr()) + begin * there.element_size(),
         static_cast<char*>(result.own.data_ptr()) + begin * result.own.element_size(), count});
    begin += count;
  }
  run_kernel(step_kernels(device.is_cuda()).cast, cast_pass(segments, from, to), stream_of(device));
  wait_for(device);
  CHECK(result.whole());
  return result.own.cpu();
}

// Every bit pattern of a format of 16 bits.
torch::Tensor all_patterns(torch::ScalarType type) {
  return torch::arange(0, 65536, torch::kInt32).to(torch::kInt16).view(type);
}

// Equal, or both no number.
bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::equal(a.isnan(), b.isnan()) &&
         torch::equal(a.nan_to_num(0, 1, -1).to(torch::kFloat32),
                      b.nan_to_num(0, 1, -1).to(torch::kFloat32)) &&
         torch::equal(a.isinf(), b.isinf());
}

// Around every rounding decision of both short formats.
torch::Tensor floats_to_round() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low :
         {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x7fffU, 0x8000U, 0x8001U}) {
      const std::uint32_t bits = high << 16 | low;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
    }
  }
  return torch::tensor(values);
}

}  // namespace

TEST_CASE("chunks have every element once", "[step-kernels]") {
  const std::vector<SegmentChunk> chunks = chunks_of(odd_sizes);
  for (std::size_t segment = 0; segment < odd_sizes.size(); ++segment) {
    std::vector<int> seen(static_cast<std::size_t>(odd_sizes[segment]), 0);
    for (const SegmentChunk& chunk : chunks) {
      if (chunk.segment != static_cast<std::int64_t>(segment)) continue;
      for (std::uint32_t thread = 0; thread < kernel_threads; ++thread) {
        for_each_element(chunk, odd_sizes[segment], {0, thread},
                         [&](std::int64_t i) { seen.at(static_cast<std::size_t>(i)) += 1; });
      }
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("vectors and what they leave over have every element once", "[step-kernels]") {
  const std::vector<SegmentChunk> chunks = chunks_of(odd_sizes);
  for (std::size_t segment = 0; segment < odd_sizes.size(); ++segment) {
    const std::int64_t count = odd_sizes[segment];
    std::vector<int> seen(static_cast<std::size_t>(count), 0);
    std::int64_t alone = 0;
    for (const SegmentChunk& chunk : chunks) {
      if (chunk.segment != static_cast<std::int64_t>(segment)) continue;
      for (std::uint32_t thread = 0; thread < kernel_threads; ++thread) {
        for_each_vector<8>(
            chunk, count, {0, thread},
            [&](std::int64_t i) {
              CHECK(i % 8 == 0);
              for (int k = 0; k < 8; ++k) seen.at(static_cast<std::size_t>(i + k)) += 1;
            },
            [&](std::int64_t i) {
              seen.at(static_cast<std::size_t>(i)) += 1;
              alone += 1;
            });
      }
    }
    CHECK(alone == count % 8);
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("casts are LibTorch's, for every number", "[step-kernels][cast]") {
  for (const auto format : {NumberFormat::BFloat16, NumberFormat::Float16}) {
    const torch::Tensor all = all_patterns(type_of(format));
    CHECK(same(cast(torch::kCPU, all, format, NumberFormat::Float32), all.to(torch::kFloat32)));
    const torch::Tensor floats = floats_to_round();
    CHECK(
        same(cast(torch::kCPU, floats, NumberFormat::Float32, format), floats.to(type_of(format))));
  }
}

TEST_CASE("each block of a cast knows its tensor, with empty ones before and after",
          "[step-kernels][cast]") {
  std::vector<CastSegment> segments;
  for (const std::int64_t count : {0, 0, 4096, 4097, 0, 1, 0}) segments.push_back({.count = count});
  const CastPass pass = cast_pass(segments, NumberFormat::Float32, NumberFormat::Float16);
  REQUIRE(pass.blocks() == 4);
  CHECK(cast_segment_of(pass, 0) == 2);
  CHECK(cast_segment_of(pass, 1) == 3);
  CHECK(cast_segment_of(pass, 2) == 3);
  CHECK(cast_segment_of(pass, 3) == 5);
  CHECK(cast_pass({}, NumberFormat::Float32, NumberFormat::Float16).blocks() == 0);
  segments.resize(cast_segments_max + 1);
  CHECK_THROWS_AS(cast_pass(segments, NumberFormat::Float32, NumberFormat::Float16),
                  std::invalid_argument);
  segments = {{.count = std::int64_t{1} << 43}};
  CHECK_THROWS_AS(cast_pass(segments, NumberFormat::Float32, NumberFormat::Float16),
                  std::invalid_argument);
}

TEST_CASE("on a GPU casts have the bits of the loops", "[step-kernels][cast][gpu]") {
  if (const std::string reason = no_gpu(); !reason.empty()) DDPRUN_SKIP(reason);
  const torch::Device gpu(torch::kCUDA, 0);
  for (const auto format : {NumberFormat::BFloat16, NumberFormat::Float16}) {
    const torch::Tensor all = all_patterns(type_of(format)), floats = floats_to_round();
    CHECK(same(cast(gpu, all, format, NumberFormat::Float32), all.to(torch::kFloat32)));
    CHECK(same(cast(gpu, floats, NumberFormat::Float32, format), floats.to(type_of(format))));
  }
}
