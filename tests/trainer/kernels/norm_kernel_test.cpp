// The kernels of batch normalisation as they are launched: who does what, that nothing else is
// written to, and on a GPU the bits of the loops. What they compute is tested where autograd calls
// them (tests/trainer/models/fast_layers_test.cpp).
#include "trainer/kernels/device/norm_kernel.h"

#include <algorithm>

#include "tests/testing/catch.h"
#include "tests/trainer/kernels/device_memory.h"
#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;

namespace {

struct NormCase {
  std::int64_t rows;
  std::int32_t channels;
};

// Two rows; fewer than a block's lines; around what a block reads at once; lanes that divide no
// block; several tiles, the last one not full; as many parts as there may be.
const std::vector<NormCase> norm_cases{{2, 8},    {3, 8},     {127, 16},   {1024, 8}, {1025, 8},
                                       {49, 24},  {7, 256},   {31, 264},   {50, 512}, {9, 2048},
                                       {331, 64}, {70001, 8}, {17000, 256}};

struct Normed {
  torch::Tensor y, mask, statistics, running_mean, running_variance, batches;
  torch::Tensor x_gradient, g, weight_gradient, bias_gradient;

  std::vector<torch::Tensor> all() const {
    return {y,       mask,       statistics, running_mean,    running_variance,
            batches, x_gradient, g,          weight_gradient, bias_gradient};
  }
};

// How many gradients y has: one, or two whose sum it is; with one, g may be written or not.
enum class Backward { Plain, WritesG, AddsGradients };

// Forward and backward with shortcut and ReLU; the results on the CPU.
Normed norm(torch::Device device, const NormCase& one, NumberFormat format,
            Backward way = Backward::WritesG) {
  torch::manual_seed(7);
  const NormGeometry geometry = norm_geometry(one.rows, one.channels);
  const std::int64_t channels = one.channels;
  const std::int64_t count = one.rows * channels;
  const auto type = type_of(format);
  const auto random = [&](std::int64_t n) { return torch::randn({n}); };
  const torch::Tensor x = (random(count) * 2 + 3).to(type).to(device);
  const torch::Tensor shortcut = random(count).to(type).to(device);
  torch::Tensor gradient = random(count).to(type).to(device), other;
  const torch::Tensor addend = random(count).to(type).to(device);
  // The sum before, as autograd has it, or the other one for the kernel to add.
  if (way == Backward::AddsGradients) {
    other = addend;
  } else {
    gradient = (gradient.cpu() + addend.cpu()).to(device);
  }
  const torch::Tensor weight = random(channels).to(device), bias = random(channels).to(device);
  const auto guarded = [&](std::int64_t n, torch::ScalarType of) {
    return Guarded(device, torch::zeros({n}), of);
  };
  const std::int64_t partial_count = geometry.parts * 2 * channels;
  const Guarded y = guarded(count, type), x_gradient = guarded(count, type);
  const Guarded g = guarded(count, type);
  const Guarded mask = guarded(count / vector_numbers, torch::kUInt8);
  const Guarded statistics = guarded(4 * channels, torch::kFloat32);
  const Guarded mean = guarded(channels, torch::kFloat32);
  const Guarded variance = guarded(channels, torch::kFloat32);
  const Guarded partial = guarded(partial_count, torch::kFloat32);
  const Guarded factors = guarded(3 * channels, torch::kFloat32);
  const Guarded weight_gradient = guarded(channels, torch::kFloat32);
  const Guarded bias_gradient = guarded(channels, torch::kFloat32);
  const torch::Tensor batches = torch::full({}, 41, torch::kInt64).to(device);
  const StepKernels& kernels = step_kernels(device.is_cuda());
  run_kernel(kernels.norm_forward,
             NormForward{.geometry = geometry,
                         .format = format,
                         .relu = 1,
                         .x = x.data_ptr(),
                         .shortcut = shortcut.data_ptr(),
                         .weight = weight.data_ptr<float>(),
                         .bias = bias.data_ptr<float>(),
                         .epsilon = 1e-5,
                         .momentum = 0.1,
                         .running_mean = mean.own.data_ptr<float>(),
                         .running_variance = variance.own.data_ptr<float>(),
                         .batches = batches.data_ptr<std::int64_t>(),
                         .partial = partial.own.data_ptr<float>(),
                         .statistics = statistics.own.data_ptr<float>(),
                         .y = y.own.data_ptr(),
                         .mask = mask.own.data_ptr<std::uint8_t>()},
             stream_of(device));
  run_kernel(kernels.norm_backward,
             NormBackward{.geometry = geometry,
                          .format = format,
                          .gradient = gradient.data_ptr(),
                          .other_gradient = other.defined() ? other.data_ptr() : nullptr,
                          .x = x.data_ptr(),
                          .mask = mask.own.data_ptr<std::uint8_t>(),
                          .statistics = statistics.own.data_ptr<float>(),
                          .weight = weight.data_ptr<float>(),
                          .partial = partial.own.data_ptr<float>(),
                          .factors = factors.own.data_ptr<float>(),
                          .weight_gradient = weight_gradient.own.data_ptr<float>(),
                          .bias_gradient = bias_gradient.own.data_ptr<float>(),
                          .x_gradient = x_gradient.own.data_ptr(),
                          .g = way == Backward::Plain ? nullptr : g.own.data_ptr()},
             stream_of(device));
  wait_for(device);
  for (const Guarded* one_of : {&y, &x_gradient, &g, &mask, &statistics, &mean, &variance, &partial,
                                &factors, &weight_gradient, &bias_gradient}) {
    CHECK(one_of->whole());
  }
  return {y.own.cpu(),
          mask.own.cpu(),
          statistics.own.cpu(),
          mean.own.cpu(),
          variance.own.cpu(),
          batches.cpu(),
          x_gradient.own.cpu(),
          g.own.cpu(),
          weight_gradient.own.cpu(),
          bias_gradient.own.cpu()};
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("each vector of each row is one thread's", "[step-kernels][norm]",
                       ((int at_once), at_once), norm_rows_at_once, norm_rows_at_once_max) {
  for (const NormCase& one : norm_cases) {
    INFO(one.rows << " rows of " << one.channels << " channels");
    const NormGeometry geometry = norm_geometry(one.rows, one.channels);
    CHECK(norm_blocks(geometry) <= std::max<std::int64_t>(norm_blocks_max, geometry.tiles));
    std::vector<int> seen(static_cast<std::size_t>(one.rows * one.channels / vector_numbers), 0);
    int not_loaded = 0;
    for (std::int64_t block = 0; block < norm_blocks(geometry); ++block) {
      for (std::uint32_t thread = 0; thread < kernel_threads; ++thread) {
        const NormThread own = norm_thread(geometry, {static_cast<std::uint32_t>(block), thread});
        std::int64_t loaded = -1;
        for_each_row<at_once>(
            own,
            [&](std::int64_t row, int k) {
              if (k == 0) loaded = row;
            },
            [&](std::int64_t row, int k) {
              not_loaded += row == loaded + k * own.step ? 0 : 1;
              seen.at(static_cast<std::size_t>(own.at(row))) += 1;
            });
      }
    }
    CHECK(not_loaded == 0);
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("batch norm writes to nothing but its results", "[step-kernels][norm]") {
  for (const NormCase& one : norm_cases) {
    for (const auto format :
         {NumberFormat::Float32, NumberFormat::BFloat16, NumberFormat::Float16}) {
      INFO(one.rows << " rows of " << one.channels << " channels");
      const Normed found = norm(torch::kCPU, one, format);
      CHECK(found.batches.item<std::int64_t>() == 42);
      // A bit is set where y is positive, and the shortcut's gradient is nothing elsewhere.
      const torch::Tensor bits =
          found.mask.unsqueeze(1).bitwise_right_shift(torch::arange(8, torch::kUInt8)) & 1;
      CHECK(torch::equal(bits.flatten() != 0, found.y > 0));
      CHECK((found.g.masked_select(found.y <= 0) == 0).all().item<bool>());
    }
  }
}

TEST_CASE("batch norm's backward has the same bits whoever adds two gradients, and who masks them",
          "[step-kernels][norm]") {
  for (const NormCase& one : norm_cases) {
    for (const auto format :
         {NumberFormat::Float32, NumberFormat::BFloat16, NumberFormat::Float16}) {
      INFO(one.rows << " rows of " << one.channels << " channels");
      const Normed expected = norm(torch::kCPU, one, format, Backward::Plain);
      for (const Backward way : {Backward::WritesG, Backward::AddsGradients}) {
        const Normed found = norm(torch::kCPU, one, format, way);
        CHECK(torch::equal(found.x_gradient, expected.x_gradient));
        CHECK(torch::equal(found.weight_gradient, expected.weight_gradient));
        CHECK(torch::equal(found.bias_gradient, expected.bias_gradient));
      }
    }
  }
}

TEST_CASE("on a GPU batch norm has the bits of the loops", "[step-kernels][norm][gpu]") {
  if (const std::string reason = no_gpu(); !reason.empty()) DDPRUN_SKIP(reason);
  const torch::Device gpu(torch::kCUDA, 0);
  for (const NormCase& one : norm_cases) {
    for (const auto format :
         {NumberFormat::Float32, NumberFormat::BFloat16, NumberFormat::Float16}) {
      INFO(one.rows << " rows of " << one.channels << " channels, format "
                    << static_cast<int>(format));
      for (const Backward way : {Backward::Plain, Backward::WritesG, Backward::AddsGradients}) {
        const auto there = norm(gpu, one, format, way).all();
        const auto here = norm(torch::kCPU, one, format, way).all();
        for (std::size_t i = 0; i < here.size(); ++i) {
          INFO("result " << i << ", way " << static_cast<int>(way));
          CHECK(torch::equal(there[i], here[i]));
        }
      }
    }
  }
}
