// The CPU kernels of batch_norm_relu() and stem_pool() against LibTorch's separate operations.
#include <torch/torch.h>

#include <limits>

#include "tests/testing/catch.h"
#include "trainer/models/batch_norm_relu.h"
#include "trainer/models/stem_pool.h"

using namespace ddprun::trainer;

namespace {

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

// Outputs, gradients and running statistics of one step.
std::vector<torch::Tensor> step(ddprun::worker::SyncBatchNorm2d norm, const Layer& layer,
                                torch::Tensor x, torch::Tensor shortcut,
                                const torch::Tensor& direction, bool ours) {
  x = x.detach().clone(layer.format).requires_grad_();
  if (shortcut.defined()) shortcut = shortcut.detach().clone(layer.format).requires_grad_();
  norm = copy_of(norm);
  torch::Tensor y;
  if (ours) {
    y = layer.relu ? batch_norm_relu(*norm, x, shortcut) : batch_norm(*norm, x);
  } else {
    y = norm->forward(x);
    if (shortcut.defined()) y = y + shortcut;
    if (layer.relu) y = y.relu();
  }
  y.backward(direction);
  std::vector<torch::Tensor> all{y.detach(),        x.grad(),           norm->weight.grad(),
                                 norm->bias.grad(), norm->running_mean, norm->running_var};
  if (shortcut.defined()) all.push_back(shortcut.grad());
  return all;
}

// The largest difference, relative to the largest value.
double difference(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor left = a.to(torch::kFloat64);
  const torch::Tensor right = b.to(torch::kFloat64);
  return (left - right).abs().max().item<double>() / (1e-6 + right.abs().max().item<double>());
}

std::vector<Layer> layers() {
  std::vector<Layer> all;
  for (const auto format : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      // Planes: one pixel, few, an odd number beyond a vector, more than one part of a sum.
      for (const auto& shape : std::vector<std::vector<std::int64_t>>{
               {5, 7, 1, 1}, {3, 64, 2, 2}, {2, 5, 7, 9}, {4, 16, 28, 28}, {1, 3, 81, 83}}) {
        all.push_back({shape, format, type, false, true});
        all.push_back({shape, format, type, true, true});
        all.push_back({shape, format, type, false, false});
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("batch norm, shortcut and ReLU in one equal the separate operations", "[trainer]") {
  torch::manual_seed(1);
  for (const Layer& layer : layers()) {
    INFO("shape " << torch::IntArrayRef(layer.shape) << " channels-last "
                  << (layer.format == torch::MemoryFormat::ChannelsLast) << " "
                  << torch::toString(layer.type) << " shortcut " << layer.shortcut << " relu "
                  << layer.relu);
    const torch::Tensor x = random_input(layer);
    const torch::Tensor shortcut = layer.shortcut ? random_input(layer) - 3 : torch::Tensor();
    const torch::Tensor direction = random_input(layer) - 3;
    const auto norm = make_norm(layer.shape[1]);

    const auto ours = step(norm, layer, x, shortcut, direction, true);
    // In float32 also where the values are bfloat16: then what differs is rounding of ours alone.
    Layer exact = layer;
    exact.type = torch::kFloat32;
    const auto theirs = step(norm, exact, x.to(torch::kFloat32),
                             shortcut.defined() ? shortcut.to(torch::kFloat32) : torch::Tensor(),
                             direction.to(torch::kFloat32), false);

    CHECK(ours[0].scalar_type() == layer.type);
    CHECK(ours[0].is_contiguous(layer.format));
    const double allowed = layer.type == torch::kFloat32 ? 2e-5 : 2e-2;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      INFO("result " << i);
      CHECK(difference(ours[i], theirs[i]) < allowed);
    }
  }
}

TEST_CASE("the variance is exact when the mean is large beside it", "[trainer]") {
  torch::manual_seed(2);
  const torch::Tensor x = torch::randn({8, 4, 20, 20}) * 1e-2 + 100;
  auto norm = make_norm(4);
  const torch::Tensor y = batch_norm(*norm, x);
  const torch::Tensor wanted = x.to(torch::kFloat64).var({0, 2, 3}) * 0.1 + 0.9;
  CHECK(difference(norm->running_var, wanted) < 1e-6);
}

TEST_CASE("sums do not depend on the number of threads", "[trainer]") {
  torch::manual_seed(3);
  const Layer layer{{16, 32, 32, 32}, torch::MemoryFormat::ChannelsLast};
  const torch::Tensor x = random_input(layer);
  const torch::Tensor direction = random_input(layer);
  const auto norm = make_norm(32);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = step(norm, layer, x, {}, direction, true);
  at::set_num_threads(2);
  const auto two = step(norm, layer, x, {}, direction, true);
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(torch::equal(one[i], two[i]));
}

TEST_CASE("NaN goes through batch norm and ReLU", "[trainer]") {
  torch::Tensor x = torch::randn({4, 3, 8, 8});
  x[1][2][3][3] = std::numeric_limits<float>::quiet_NaN();
  auto norm = make_norm(3);
  const torch::Tensor y = batch_norm_relu(*norm, x);
  CHECK(y.select(1, 2).isnan().all().item<bool>());
  CHECK_FALSE(y.select(1, 0).isnan().any().item<bool>());
}

TEST_CASE("evaluation and double precision take the separate operations", "[trainer]") {
  auto norm = make_norm(3);
  norm->eval();
  const torch::Tensor x = torch::randn({2, 3, 8, 8});
  CHECK(torch::equal(batch_norm_relu(*norm, x), norm->forward(x).relu()));
  norm->train();
  auto other = copy_of(norm);
  norm->to(torch::kFloat64);
  other->to(torch::kFloat64);
  CHECK(torch::equal(batch_norm_relu(*norm, x.to(torch::kFloat64)),
                     other->forward(x.to(torch::kFloat64)).relu()));
}

TEST_CASE("the stem's pooling equals max_pool2d", "[trainer]") {
  torch::manual_seed(4);
  for (const auto format : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      for (const auto& shape : std::vector<std::vector<std::int64_t>>{
               {1, 1, 1, 1}, {2, 3, 1, 5}, {2, 5, 2, 2}, {3, 64, 16, 16}, {2, 20, 15, 33}}) {
        for (const float missing : {0.0F, -std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN()}) {
          INFO("shape " << torch::IntArrayRef(shape) << " " << torch::toString(type) << " value "
                        << missing);
          torch::Tensor x = torch::randn(shape).to(type);
          x.masked_fill_(torch::rand(shape) < 0.3, missing);  // Zeros: many equal values.
          x = x.contiguous(format);
          torch::Tensor ours = x.clone().requires_grad_();
          torch::Tensor theirs = x.to(torch::kFloat32).requires_grad_();
          const torch::Tensor y = stem_pool(ours);
          const torch::Tensor wanted = torch::max_pool2d(theirs, 3, 2, 1);
          CHECK(torch::allclose(y.to(torch::kFloat32), wanted, 0, 0, /*equal_nan=*/true));
          const torch::Tensor direction = torch::randn(wanted.sizes()).to(type);
          y.backward(direction);
          wanted.backward(direction.to(torch::kFloat32));
          CHECK(difference(ours.grad(), theirs.grad()) < (type == torch::kFloat32 ? 1e-6 : 2e-2));
        }
      }
    }
  }
}
