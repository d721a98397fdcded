// The kernels of batch_norm_relu(), the CPU's and a GPU step's as loops, and those of stem_pool()
// against LibTorch's separate operations in double precision, so that what differs is the rounding
// of ours alone.
//
// What rounding may do is known for each result: a few parts in 2^24 of the sum of the sizes of the
// terms that it is made of, and for bfloat16 a part in 256 of itself besides.
#include <limits>
#include <vector>

#include "tests/testing/catch.h"
#include "trainer/models/batch_norm_relu.h"
#include "trainer/models/device_batch_norm.h"
#include "trainer/models/device_stem_pool.h"
#include "trainer/models/stem_pool.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;

namespace {

// Of sums around the first value of a channel: where that one lies several deviations from the
// mean, the variance loses a digit. Measured: 9.4e-7.
constexpr double rounding_max = 2e-6;

// Their sums are of floats, some hundred of them one after the other.
constexpr double device_rounding_max = 4e-6;

struct Layer {
  std::vector<std::int64_t> shape;
  torch::MemoryFormat format = torch::MemoryFormat::Contiguous;
  torch::ScalarType type = torch::kFloat32;
  bool shortcut = false;
  bool relu = true;
};

torch::Tensor random_input(const Layer& layer) {
  return (torch::randn(layer.shape) * 2 + 3).to(layer.type).contiguous(layer.format);
}

ddprun::worker::SyncBatchNorm2d make_norm(std::int64_t channels) {
  ddprun::worker::SyncBatchNorm2d norm(channels);
  const torch::NoGradGuard no_grad;
  norm->weight.uniform_(-1, 2);
  norm->bias.uniform_(-1, 1);
  return norm;
}

ddprun::worker::SyncBatchNorm2d copy_of(const ddprun::worker::SyncBatchNorm2d& norm) {
  ddprun::worker::SyncBatchNorm2d copy(norm->options);
  const torch::NoGradGuard no_grad;
  copy->weight.copy_(norm->weight);
  copy->bias.copy_(norm->bias);
  return copy;
}

// Of one step. Tensors of the same names in float64 are what they should be.
struct Results {
  torch::Tensor y, x_gradient, weight_gradient, bias_gradient, mean, variance, shortcut_gradient;

  std::vector<torch::Tensor> all() const {
    std::vector<torch::Tensor> tensors{y,    x_gradient, weight_gradient, bias_gradient,
                                       mean, variance};
    if (shortcut_gradient.defined()) tensors.push_back(shortcut_gradient);
    return tensors;
  }
};

struct Inputs {
  torch::Tensor x, shortcut, direction;  // `direction` is the gradient of y.
};

Inputs random_inputs(const Layer& layer) {
  return {random_input(layer), layer.shortcut ? random_input(layer) - 3 : torch::Tensor(),
          random_input(layer) - 3};
}

torch::Tensor leaf(const torch::Tensor& values) {
  return values.detach().clone(torch::MemoryFormat::Preserve).requires_grad_();
}

Results run_kernels(const ddprun::worker::SyncBatchNorm2d& weights, const Layer& layer,
                    const Inputs& in) {
  auto norm = copy_of(weights);
  const torch::Tensor x = leaf(in.x);
  const torch::Tensor shortcut = in.shortcut.defined() ? leaf(in.shortcut) : torch::Tensor();
  const torch::Tensor y =
      layer.relu ? batch_norm_relu(*norm, x, shortcut).first : batch_norm(*norm, x);
  y.backward(in.direction);
  return {y.detach(),
          x.grad(),
          norm->weight.grad(),
          norm->bias.grad(),
          norm->running_mean,
          norm->running_var,
          layer.shortcut ? shortcut.grad() : torch::Tensor()};
}

torch::Tensor wide(const torch::Tensor& values) { return values.detach().to(torch::kFloat64); }

// A value of y beside 0 may be rounded to its other side: which values are passed on by ReLU's
// gradient is read off `positive`, and forward alone says whether they are the right ones.
Results run_in_double(const ddprun::worker::SyncBatchNorm2d& weights, const Layer& layer,
                      const Inputs& in, const torch::Tensor& positive) {
  auto norm = copy_of(weights);
  norm->to(torch::kFloat64);
  const torch::Tensor x = leaf(wide(in.x));
  const torch::Tensor shortcut = in.shortcut.defined() ? leaf(wide(in.shortcut)) : torch::Tensor();
  torch::Tensor y = norm->forward(x);
  if (shortcut.defined()) y = y + shortcut;
  y.backward(layer.relu ? wide(in.direction) * positive : wide(in.direction));
  y = y.detach();
  return {layer.relu ? y.relu() : y,
          x.grad(),
          norm->weight.grad(),
          norm->bias.grad(),
          norm->running_mean,
          norm->running_var,
          layer.shortcut ? shortcut.grad() : torch::Tensor()};
}

// For each result the sum of the sizes of its terms.
Results sizes_of_terms(const ddprun::worker::SyncBatchNorm2d& weights, const Inputs& in,
                       const torch::Tensor& mask) {
  const std::vector<std::int64_t> others{0, 2, 3};
  const auto by_channel = [](const torch::Tensor& v) { return v.view({1, -1, 1, 1}); };
  const torch::Tensor x = wide(in.x);
  const torch::Tensor g = (wide(in.direction) * mask).abs();
  const torch::Tensor mean = x.mean(others).abs();
  const torch::Tensor inverse = (x.var(others, /*unbiased=*/false) + 1e-5).rsqrt();
  const torch::Tensor scale = (wide(weights->weight) * inverse).abs();
  const torch::Tensor from_mean = x.abs() + by_channel(mean);

  Results sizes;
  sizes.y = by_channel(scale) * from_mean + by_channel(wide(weights->bias).abs());
  if (in.shortcut.defined()) sizes.y += wide(in.shortcut).abs();
  sizes.bias_gradient = g.sum(others);
  sizes.weight_gradient = (g * from_mean).sum(others) * inverse;
  sizes.x_gradient = by_channel(scale) *
                     (g + by_channel(g.mean(others)) +
                      by_channel((g * from_mean).mean(others) * inverse * inverse) * from_mean);
  sizes.mean = x.abs().mean(others);
  sizes.variance = x.var(others, /*unbiased=*/true) + 1;
  sizes.shortcut_gradient = torch::zeros_like(g);  // It is copied.
  return sizes;
}

// By how much of the size of its terms `ours` differs from what it should be, at most, when
// rounding to its own type is taken off.
double excess(const torch::Tensor& ours, const torch::Tensor& exact, const torch::Tensor& size) {
  const bool half = ours.scalar_type() == torch::kHalf;
  const double unit = ours.scalar_type() == torch::kBFloat16 ? 0x1p-8 : half ? 0x1p-11 : 0.0;
  const double subnormal_unit = half ? 0x1p-25 : 0.0;
  const torch::Tensor beyond =
      ((wide(ours) - exact).abs() - unit * exact.abs() - subnormal_unit).clamp_min(0);
  return (beyond / (size + 1e-30)).max().item<double>();
}

void check_exact(const Layer& layer, double rounding) {
  INFO("shape " << torch::IntArrayRef(layer.shape) << " channels-last "
                << (layer.format == torch::MemoryFormat::ChannelsLast) << " "
                << torch::toString(layer.type) << " shortcut " << layer.shortcut << " relu "
                << layer.relu);
  const Inputs in = random_inputs(layer);
  const auto norm = make_norm(layer.shape[1]);

  const Results ours = run_kernels(norm, layer, in);

  CHECK(ours.y.scalar_type() == layer.type);
  CHECK(ours.y.is_contiguous(layer.format));
  const torch::Tensor mask = wide(layer.relu ? ours.y > 0 : torch::ones_like(ours.y));
  const auto exact = run_in_double(norm, layer, in, mask).all();
  const auto sizes = sizes_of_terms(norm, in, mask).all();
  for (std::size_t i = 0; i < exact.size(); ++i) {
    INFO("result " << i);
    CHECK(excess(ours.all()[i], exact[i], sizes[i]) < rounding);
  }
}

// Those of a GPU step, as loops.
struct DeviceNorms {
  DeviceNorms() { use_device_norms(true); }
  ~DeviceNorms() { use_device_norms(false); }
  DeviceNorms(const DeviceNorms&) = delete;
};

std::vector<Layer> layers() {
  // One pixel; planes below and above the 32 values from which loops go along the plane; channels
  // that fill no vector; more rows, or a larger plane, than one sum in float takes up; one image.
  const std::vector<std::vector<std::int64_t>> shapes{
      {2, 1, 1, 1},   {5, 7, 1, 1},    {64, 512, 1, 1},  {1030, 3, 1, 1}, {3, 64, 2, 2},
      {300, 9, 3, 3}, {2, 33, 1, 31},  {1, 17, 4, 8},    {2, 5, 7, 9},    {1, 1, 1, 3},
      {1, 3, 81, 83}, {4, 16, 28, 28}, {16, 65, 16, 16}, {1, 2, 224, 224}};
  std::vector<Layer> all;
  for (const auto format : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      for (const auto& shape : shapes) {
        all.push_back({shape, format, type, false, true});
        all.push_back({shape, format, type, true, true});
        all.push_back({shape, format, type, false, false});
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("batch norm, shortcut and ReLU in one are exact up to float's rounding", "[trainer]") {
  torch::manual_seed(1);
  for (const Layer& layer : layers()) check_exact(layer, rounding_max);
}

TEST_CASE("so they are by the kernels of a GPU step", "[trainer][norm]") {
  const DeviceNorms used;
  torch::manual_seed(1);
  // Two values; lanes that divide no block; more than one block along the channels; many parts.
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{2, 8, 1, 1},
                                              {64, 512, 1, 1},
                                              {3, 64, 2, 2},
                                              {5, 24, 7, 3},
                                              {2, 264, 3, 3},
                                              {4, 64, 28, 28},
                                              {1, 16, 120, 120}}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
      for (const bool shortcut : {false, true}) {
        for (const bool relu : {false, true}) {
          if (shortcut && !relu) continue;
          const Layer layer{shape, torch::MemoryFormat::ChannelsLast, type, shortcut, relu};
          REQUIRE(device_norm_takes(random_input(layer), {}));
          check_exact(layer, device_rounding_max);
        }
      }
    }
  }
}

TEST_CASE("the kernels of a GPU step take no other memory than theirs", "[trainer][norm]") {
  torch::manual_seed(5);
  const auto last = torch::MemoryFormat::ChannelsLast;
  const torch::Tensor x = torch::randn({2, 16, 3, 3}).contiguous(last);
  CHECK(device_norm_takes(x, {}));
  CHECK(device_norm_takes(x, x.clone()));
  CHECK_FALSE(device_norm_takes(x.contiguous(), {}));
  CHECK_FALSE(device_norm_takes(x, x.contiguous()));
  CHECK_FALSE(device_norm_takes(x, x.to(torch::kHalf)));
  CHECK_FALSE(device_norm_takes(x.to(torch::kFloat64), {}));
  CHECK_FALSE(device_norm_takes(torch::randn({2, 12, 3, 3}).contiguous(last), {}));
  // As a part of other memory may lie: not on a border of 16 bytes.
  const torch::Tensor part =
      torch::randn({2 * 3 * 3 * 16 + 1}).narrow(0, 1, 2 * 3 * 3 * 16).view({2, 3, 3, 16});
  CHECK_FALSE(device_norm_takes(part.permute({0, 3, 1, 2}), {}));
  // Then the others are what runs.
  const DeviceNorms used;
  const auto norm = make_norm(12);
  const torch::Tensor odd = torch::randn({2, 12, 3, 3}).contiguous(last);
  auto other = copy_of(norm);
  // Where shift and product cancel each other, what is left is their rounding: of values near 1.
  CHECK(torch::allclose(batch_norm_relu(*copy_of(norm), odd).first, other->forward(odd).relu(),
                        1e-5, 1e-5));
}

TEST_CASE("by the kernels of a GPU step a gradient of any order and type comes back",
          "[trainer][norm]") {
  const DeviceNorms used;
  torch::manual_seed(6);
  const Layer layer{{4, 16, 5, 5}, torch::MemoryFormat::ChannelsLast, torch::kHalf, true, true};
  const auto norm = make_norm(16);
  Inputs in = random_inputs(layer);
  const auto as_it_lies = run_kernels(norm, layer, in).all();
  in.direction = in.direction.contiguous();
  const auto other_order = run_kernels(norm, layer, in).all();
  for (std::size_t i = 0; i < as_it_lies.size(); ++i) {
    CHECK(torch::equal(as_it_lies[i], other_order[i]));
  }
}

namespace {

// What backward leaves where the first and the second reader of y, or the one that is defined, give
// it these gradients.
std::vector<torch::Tensor> gradients_of(const ddprun::worker::SyncBatchNorm2d& weights,
                                        const Inputs& in,
                                        const std::vector<torch::Tensor>& of_readers) {
  auto norm = copy_of(weights);
  const torch::Tensor x = leaf(in.x);
  const torch::Tensor shortcut = in.shortcut.defined() ? leaf(in.shortcut) : torch::Tensor();
  const Activation y = batch_norm_relu(*norm, x, shortcut);
  std::vector<torch::Tensor> outputs, gradients;
  for (std::size_t i = 0; i < of_readers.size(); ++i) {
    if (!of_readers[i].defined()) continue;
    outputs.push_back(i == 0 ? y.first : y.second);
    gradients.push_back(of_readers[i]);
  }
  torch::autograd::backward(outputs, gradients);
  std::vector<torch::Tensor> results{x.grad(), norm->weight.grad(), norm->bias.grad()};
  if (shortcut.defined()) results.push_back(shortcut.grad());
  return results;
}

}  // namespace

TEST_CASE("two readers of a batch norm have the gradients of their sum", "[trainer][norm]") {
  torch::manual_seed(7);
  for (const bool device_norms : {false, true}) {
    const auto used = device_norms ? std::make_unique<DeviceNorms>() : nullptr;
    for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
      for (const bool shortcut : {false, true}) {
        const Layer layer{{3, 16, 5, 7}, torch::MemoryFormat::ChannelsLast, type, shortcut, true};
        const auto norm = make_norm(16);
        const Inputs in = random_inputs(layer);
        // Of another order, as a reader of another layout leaves it.
        const torch::Tensor other = random_input(layer).contiguous();
        const auto expected = gradients_of(norm, in, {in.direction + other});
        const auto both = gradients_of(norm, in, {in.direction, other});
        const auto second_alone = gradients_of(norm, in, {{}, in.direction + other});
        for (std::size_t i = 0; i < expected.size(); ++i) {
          INFO("device norms " << device_norms << ", shortcut " << shortcut << ", result " << i);
          CHECK(torch::equal(both[i], expected[i]));
          CHECK(torch::equal(second_alone[i], expected[i]));
        }
      }
    }
  }
}

TEST_CASE("the variance is exact when the mean is large beside it", "[trainer]") {
  torch::manual_seed(2);
  const torch::Tensor x = torch::randn({8, 4, 20, 20}) * 1e-2 + 100;
  auto norm = make_norm(4);
  const torch::Tensor y = batch_norm(*norm, x);
  const torch::Tensor wanted = wide(x).var({0, 2, 3}) * 0.1 + 0.9;
  CHECK(excess(norm->running_var, wanted, wanted) < 1e-6);
}

TEST_CASE("sums do not depend on the number of threads", "[trainer]") {
  torch::manual_seed(3);
  const Layer layer{{16, 32, 32, 32}, torch::MemoryFormat::ChannelsLast};
  const Inputs in = random_inputs(layer);
  const auto norm = make_norm(32);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = run_kernels(norm, layer, in).all();
  at::set_num_threads(2);
  const auto two = run_kernels(norm, layer, in).all();
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(torch::equal(one[i], two[i]));
}

TEST_CASE("NaN goes through batch norm and ReLU", "[trainer]") {
  torch::Tensor x = torch::randn({4, 3, 8, 8});
  x[1][2][3][3] = std::numeric_limits<float>::quiet_NaN();
  auto norm = make_norm(3);
  const torch::Tensor y = batch_norm_relu(*norm, x).first;
  CHECK(y.select(1, 2).isnan().all().item<bool>());
  CHECK_FALSE(y.select(1, 0).isnan().any().item<bool>());
}

TEST_CASE("evaluation and double precision take the separate operations", "[trainer]") {
  auto norm = make_norm(3);
  norm->eval();
  const torch::Tensor x = torch::randn({2, 3, 8, 8});
  CHECK(torch::equal(batch_norm_relu(*norm, x).first, norm->forward(x).relu()));
  norm->train();
  auto other = copy_of(norm);
  norm->to(torch::kFloat64);
  other->to(torch::kFloat64);
  CHECK(torch::equal(batch_norm_relu(*norm, x.to(torch::kFloat64)).first,
                     other->forward(x.to(torch::kFloat64)).relu()));
}

namespace {

// Against LibTorch's own in double precision.
void check_pooling(const std::vector<torch::MemoryFormat>& formats,
                   const std::vector<torch::ScalarType>& types,
                   const std::vector<std::vector<std::int64_t>>& shapes) {
  torch::manual_seed(4);
  for (const auto format : formats) {
    for (const auto type : types) {
      for (const auto& shape : shapes) {
        for (const float missing : {0.0F, -std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN()}) {
          INFO("shape " << torch::IntArrayRef(shape) << " " << torch::toString(type) << " value "
                        << missing);
          torch::Tensor x = torch::randn(shape).to(type);
          x.masked_fill_(torch::rand(shape) < 0.3, missing);  // Zeros: many equal values.
          x = x.contiguous(format);
          torch::Tensor ours = x.clone().requires_grad_();
          torch::Tensor theirs = leaf(wide(x));
          const torch::Tensor y = stem_pool(ours);
          const torch::Tensor wanted = torch::max_pool2d(theirs, 3, 2, 1);
          CHECK(torch::allclose(wide(y), wanted, 0, 0, /*equal_nan=*/true));
          const torch::Tensor direction = torch::randn(wanted.sizes()).to(type);
          y.backward(direction);
          const auto gradient = [&](const torch::Tensor& of_y) {
            return torch::autograd::grad({wanted}, {theirs}, {of_y}, /*retain_graph=*/true)[0];
          };
          // Up to four results share a value, and each of three sums is rounded.
          const double rounding = type == torch::kFloat32 ? 0x1p-24
                                  : type == torch::kHalf  ? 0x1p-11
                                                          : 0x1p-8;
          CHECK(excess(ours.grad(), gradient(wide(direction)), gradient(wide(direction).abs())) <=
                3 * rounding);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("the stem's pooling equals max_pool2d", "[trainer]") {
  check_pooling({torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast},
                {torch::kFloat32, torch::kBFloat16},
                {{1, 1, 1, 1},
                 {2, 3, 1, 5},
                 {2, 5, 2, 2},
                 {3, 64, 16, 16},
                 {2, 20, 15, 33},
                 {1, 3, 112, 112}});
}

TEST_CASE("so it does by the kernels of a GPU step", "[trainer][pool]") {
  use_device_pool(true);
  const std::vector<std::vector<std::int64_t>> shapes{
      {1, 8, 1, 1}, {2, 16, 1, 5}, {2, 8, 2, 2}, {3, 64, 16, 16}, {2, 24, 15, 33}, {1, 2056, 3, 4}};
  for (const auto& shape : shapes) {
    const torch::Tensor x = torch::randn(shape).contiguous(torch::MemoryFormat::ChannelsLast);
    REQUIRE(device_pool_takes(x));
    CHECK_FALSE(device_pool_takes(x.to(torch::kFloat64)));
  }
  // Not what has another order, 8 channels' half, or begins within a vector.
  CHECK_FALSE(device_pool_takes(torch::randn({2, 8, 4, 4})));
  CHECK_FALSE(
      device_pool_takes(torch::randn({2, 4, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast)));
  CHECK_FALSE(device_pool_takes(torch::randn({1 + 2 * 8 * 16})
                                    .narrow(0, 1, 2 * 8 * 16)
                                    .view({2, 4, 4, 8})
                                    .permute({0, 3, 1, 2})));
  check_pooling({torch::MemoryFormat::ChannelsLast},
                {torch::kFloat32, torch::kBFloat16, torch::kHalf}, shapes);
  use_device_pool(false);
}
