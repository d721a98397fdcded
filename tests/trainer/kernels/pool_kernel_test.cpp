// The kernels of the stem's pooling as they are launched: that all is written and nothing else, and
// on a GPU the bits of the loops. What they compute is tested where autograd calls them
// (tests/trainer/models/fast_layers_test.cpp).
#include "trainer/kernels/device/pool_kernel.h"

#include "tests/testing/catch.h"
#include "tests/trainer/kernels/device_memory.h"
#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;

namespace {

// One pixel; sides of odd and even length; rows shorter and longer than a block.
const std::vector<PoolShape> pool_shapes{{1, 1, 1, 8},    {2, 1, 6, 16},  {3, 7, 2, 24},
                                         {2, 16, 16, 64}, {1, 5, 113, 8}, {1, 3, 3, 4112}};

struct Pooled {
  torch::Tensor y, taps, x_gradient;  // On the CPU.

  std::vector<torch::Tensor> all() const { return {y, taps, x_gradient}; }
};

Pooled pool(torch::Device device, const PoolShape& shape, NumberFormat format) {
  torch::manual_seed(9);
  const auto type = type_of(format);
  const std::int64_t count = shape.images * shape.height * shape.width * shape.channels;
  const std::int64_t pooled =
      shape.images * shape.pooled_height() * shape.pooled_width() * shape.channels;
  // Whole numbers: many are equal, and sums are exact.
  const torch::Tensor x = torch::randint(-3, 4, {count}).to(type).to(device);
  const torch::Tensor gradient = torch::randint(-9, 10, {pooled}).to(type).to(device);
  const auto unwritten = [&](std::int64_t n, torch::ScalarType of) {
    return Guarded(device, torch::full({n}, 99), of);
  };
  const Guarded y = unwritten(pooled, type), x_gradient = unwritten(count, type);
  const Guarded taps = unwritten(pooled, torch::kUInt8);
  const StepKernels& kernels = step_kernels(device.is_cuda());
  auto* const words = static_cast<std::uint64_t*>(taps.own.data_ptr());
  run_kernel(kernels.pool_forward,
             PoolForward{.shape = shape,
                         .format = format,
                         .x = x.data_ptr(),
                         .y = y.own.data_ptr(),
                         .taps = words},
             stream_of(device));
  run_kernel(kernels.pool_backward,
             PoolBackward{.shape = shape,
                          .format = format,
                          .gradient = gradient.data_ptr(),
                          .taps = words,
                          .x_gradient = x_gradient.own.data_ptr()},
             stream_of(device));
  wait_for(device);
  for (const Guarded* one : {&y, &x_gradient, &taps}) CHECK(one->whole());
  // Each gradient of a result went to one place.
  CHECK(x_gradient.own.cpu().to(torch::kInt64).sum().item<std::int64_t>() ==
        gradient.cpu().to(torch::kInt64).sum().item<std::int64_t>());
  return {y.own.cpu(), taps.own.cpu(), x_gradient.own.cpu()};
}

constexpr NumberFormat formats[] = {NumberFormat::Float32, NumberFormat::BFloat16,
                                    NumberFormat::Float16};

}  // namespace

TEST_CASE("pooling writes all of its results and nothing behind them", "[step-kernels][pool]") {
  for (const PoolShape& shape : pool_shapes) {
    for (const NumberFormat format : formats) {
      INFO(shape.images << " x " << shape.height << " x " << shape.width << " x "
                        << shape.channels);
      const Pooled done = pool(torch::kCPU, shape, format);
      CHECK(done.y.to(torch::kFloat32).abs().max().item<float>() <= 3);
      CHECK(done.taps.max().item<int>() < pool_side * pool_side);
      CHECK(done.x_gradient.to(torch::kFloat32).abs().max().item<float>() <= 36);
    }
  }
}

TEST_CASE("on a GPU pooling has the bits of the loops", "[step-kernels][pool][gpu]") {
  if (const std::string why = no_gpu(); !why.empty()) DDPRUN_SKIP(why);
  for (const PoolShape& shape : pool_shapes) {
    for (const NumberFormat format : formats) {
      const auto expected = pool(torch::kCPU, shape, format).all();
      const auto found = pool(torch::kCUDA, shape, format).all();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(torch::equal(found[i], expected[i]));
      }
    }
  }
}
