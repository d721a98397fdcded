// winograd_conv() against LibTorch's convolution in double precision. How large errors may be is
// measured by those of LibTorch's own convolution in float32 on the same data.
#include "trainer/kernels/winograd/winograd.h"

#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "trainer/models/winograd_conv.h"
#include "worker/torch/libtorch.h"

using ddprun::testing::contains;
using ddprun::testing::message_of;
using namespace ddprun::trainer;

namespace {

constexpr auto channels_last = torch::MemoryFormat::ChannelsLast;

struct WinogradLayer {
  std::int64_t images, in, out, height, width;
};

std::ostream& operator<<(std::ostream& to, const WinogradLayer& layer) {
  return to << layer.images << " images of " << layer.height << " x " << layer.width << ", "
            << layer.in << " to " << layer.out << " channels";
}

struct WinogradInputs {
  torch::Tensor x, weight, direction;  // `direction` is the gradient of y.
};

// Activations have the mean of values after ReLU, or a larger one.
WinogradInputs winograd_inputs(const WinogradLayer& layer, double mean) {
  const auto values = [](std::vector<std::int64_t> sizes) {
    return torch::randn(sizes).contiguous(channels_last);
  };
  return {values({layer.images, layer.in, layer.height, layer.width}) + mean,
          values({layer.out, layer.in, 3, 3}) * 0.1,
          values({layer.images, layer.out, layer.height, layer.width})};
}

struct WinogradResults {
  torch::Tensor y, x_gradient, weight_gradient;
  std::vector<torch::Tensor> all() const { return {y, x_gradient, weight_gradient}; }
};

template <typename Conv>
WinogradResults run(const WinogradInputs& in, torch::ScalarType type, torch::ScalarType weight_type,
                    const Conv& conv) {
  const torch::Tensor x = in.x.detach().to(type, false, /*copy=*/true).requires_grad_();
  const torch::Tensor weight = in.weight.detach().to(weight_type, false, true).requires_grad_();
  const torch::Tensor y = conv(x, weight);
  const auto gradients = torch::autograd::grad({y}, {x, weight}, {in.direction.to(type)});
  return {y.detach(), gradients[0], gradients[1]};
}

template <typename Conv>
WinogradResults run(const WinogradInputs& in, torch::ScalarType type, const Conv& conv) {
  return run(in, type, type, conv);
}

WinogradResults run_bfloat16(const WinogradInputs& in) {
  return run(in, torch::kBFloat16, torch::kFloat32, winograd_conv);
}

torch::Tensor winograd_plain_conv(const torch::Tensor& x, const torch::Tensor& weight) {
  return torch::conv2d(x, weight, {}, 1, 1);
}

// Images that bfloat16 holds exactly; weights that it does not.
WinogradInputs with_bfloat16_images(WinogradInputs in) {
  for (torch::Tensor* images : {&in.x, &in.direction}) {
    *images = images->to(torch::kBFloat16).to(torch::kFloat32);
  }
  return in;
}

double rms(const torch::Tensor& values) { return values.square().mean().sqrt().item<double>(); }

class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

const std::vector<WinogradLayer> winograd_layers{
    {1, 16, 16, 1, 1},    {3, 16, 48, 2, 3},    {2, 48, 16, 4, 4},    {1, 64, 64, 30, 17},
    {5, 64, 64, 8, 8},    {2, 80, 144, 14, 14}, {3, 128, 64, 9, 5},   {1, 16, 512, 7, 7},
    {17, 512, 512, 7, 7}, {1, 512, 16, 1, 3},   {70, 320, 528, 4, 5}, {2, 272, 256, 13, 14},
    {1, 16, 16, 120, 3},  {70, 256, 256, 1, 2}, {6, 64, 128, 28, 28},
};

// Root mean squares, the errors relative to `size`, that of the exact result.
struct Errors {
  double size, ours, plain;
};

std::ostream& operator<<(std::ostream& out, const Errors& errors) {
  return out << "relative error " << errors.ours << ", LibTorch's " << errors.plain;
}

Errors compare_errors(const torch::Tensor& ours, const torch::Tensor& plain,
                      const torch::Tensor& exact) {
  REQUIRE(ours.sizes() == exact.sizes());
  CHECK(ours.is_contiguous(channels_last));
  const double size = rms(exact);
  return {size, rms(ours - exact) / size, rms(plain - exact) / size};
}

}  // namespace

TEST_CASE("results are a convolution's within a few of its rounding errors", "[trainer][model]") {
  torch::manual_seed(1);
  for (const WinogradLayer& layer : winograd_layers) {
    for (const double mean : {0.0, 4.0}) {
      INFO(layer << ", mean " << mean);
      const WinogradInputs in = winograd_inputs(layer, mean);

      const std::vector<torch::Tensor> ours = run(in, torch::kFloat32, winograd_conv).all();

      const auto exact = run(in, torch::kFloat64, winograd_plain_conv).all();
      const auto plain = run(in, torch::kFloat32, winograd_plain_conv).all();
      for (std::size_t i = 0; i < ours.size(); ++i) {
        const Errors errors = compare_errors(ours[i], plain[i], exact[i]);
        INFO("result " << i << ": " << errors);
        CHECK(errors.ours <= 10 * errors.plain + 1e-7);
        CHECK((ours[i] - exact[i]).abs().max().item<double>() <= 2e-5 * errors.size);
      }
    }
  }
}

TEST_CASE("in bfloat16 results are rounded once, and the weights' gradient is not",
          "[trainer][model]") {
  torch::manual_seed(4);
  for (const WinogradLayer& layer : winograd_layers) {
    INFO(layer);
    const WinogradInputs in = with_bfloat16_images(winograd_inputs(layer, 0.5));

    const std::vector<torch::Tensor> ours = run_bfloat16(in).all();

    const auto exact = run(in, torch::kFloat64, winograd_plain_conv).all();
    // LibTorch's takes most of the time where the processor has no bfloat16, and the two largest
    // layers most of that.
    const bool large =
        layer.images * layer.in * layer.out * layer.height * layer.width > 100'000'000;
    const auto plain = large ? exact : run(in, torch::kBFloat16, winograd_plain_conv).all();
    const torch::ScalarType types[] = {torch::kBFloat16, torch::kBFloat16, torch::kFloat32};
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const Errors errors = compare_errors(ours[i], plain[i], exact[i]);
      INFO("result " << i << ": " << errors);
      CHECK(ours[i].scalar_type() == types[i]);
      const double rounding = types[i] == torch::kBFloat16 ? 0x1p-8 : 0.0;
      const torch::Tensor allowed = rounding * exact[i].abs() + 2e-5 * errors.size;
      CHECK(((ours[i] - exact[i]).abs() <= allowed).all().item<bool>());
      if (!large) CHECK(errors.ours < errors.plain);
    }
  }
}

TEST_CASE("a convolution has the same bits each time and for each number of threads",
          "[trainer][model]") {
  torch::manual_seed(2);
  for (const WinogradLayer& layer : winograd_layers) {
    INFO(layer);
    const WinogradInputs in = winograd_inputs(layer, 1);
    const auto run_with = [&](int threads) {
      const ThreadCount count(threads);
      std::vector<torch::Tensor> results = run(in, torch::kFloat32, winograd_conv).all();
      for (const torch::Tensor& narrow : run_bfloat16(in).all()) results.push_back(narrow);
      return results;
    };
    const auto first = run_with(1);
    for (const int threads : {1, 3}) {
      const auto again = run_with(threads);
      for (std::size_t i = 0; i < first.size(); ++i) CHECK(torch::equal(first[i], again[i]));
    }
  }
}

TEST_CASE("a convolution reads and writes nothing outside of its tensors", "[trainer][model]") {
  torch::manual_seed(3);
  const WinogradLayer layer{2, 48, 80, 6, 5};
  const WinogradInputs in = winograd_inputs(layer, 1);
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    INFO(torch::toString(type));
    // By NaN, at an odd address.
    const auto surrounded = [](const torch::Tensor& dense, torch::ScalarType of) {
      const torch::Tensor memory = torch::full({dense.numel() + 301}, NAN, of);
      const torch::Tensor inside = memory.narrow(0, 151, dense.numel());
      return inside.as_strided_(dense.sizes(), dense.strides()).copy_(dense);
    };
    const torch::Tensor x = surrounded(in.x, type).requires_grad_();
    const torch::Tensor weight = surrounded(in.weight, torch::kFloat32).requires_grad_();

    const torch::Tensor y = winograd_conv(x, weight);
    const auto found = torch::autograd::grad({y}, {x, weight}, {surrounded(in.direction, type)});

    const WinogradResults expected = run(in, type, torch::kFloat32, winograd_conv);
    CHECK(torch::equal(y, expected.y));
    CHECK(torch::equal(found[0], expected.x_gradient));
    CHECK(torch::equal(found[1], expected.weight_gradient));
  }
}

TEST_CASE("a NaN reaches every result of a convolution that it is part of", "[trainer][model]") {
  WinogradInputs in = winograd_inputs({1, 16, 16, 9, 9}, 0);
  in.x[0][3][4][4] = NAN;
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const torch::Tensor y = winograd_conv(in.x.to(type), in.weight);
    CHECK(y.slice(2, 3, 6).slice(3, 3, 6).isnan().all().item<bool>());
  }
}

TEST_CASE("only the gradients that somebody asks for are computed", "[trainer][model]") {
  const WinogradInputs in = winograd_inputs({2, 16, 32, 5, 5}, 0);
  const torch::Tensor weight = in.weight.clone().requires_grad_();

  winograd_conv(in.x, weight).backward(in.direction);

  CHECK(weight.grad().strides() == weight.strides());
  CHECK_FALSE(in.x.grad().defined());
  const WinogradResults all = run(in, torch::kFloat32, winograd_conv);
  CHECK(torch::equal(weight.grad(), all.weight_gradient));
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(winograd_conv(in.x, weight).requires_grad());
}

TEST_CASE("other orders of memory are converted, other convolutions refused", "[trainer][model]") {
  const WinogradInputs in = winograd_inputs({2, 16, 32, 5, 6}, 0);
  const torch::Tensor y = winograd_conv(in.x, in.weight);
  const auto planes = [](const torch::Tensor& values) { return values.contiguous(); };

  CHECK(winograd_pays(in.x, in.weight) == winograd_is_fast());
  CHECK_FALSE(winograd_pays(planes(in.x), in.weight));
  CHECK_FALSE(winograd_pays(in.x, planes(in.weight)));
  CHECK(torch::equal(winograd_conv(planes(in.x), planes(in.weight)), y));

  const auto narrow = [](const WinogradInputs& of) { return of.x.to(torch::kBFloat16); };
  const WinogradInputs large = winograd_inputs({2, 32, 48, 7, 7}, 0);
  CHECK(winograd_pays(narrow(large), large.weight) ==
        (winograd_is_fast() && !has_bfloat16_tiles()));
  CHECK_FALSE(winograd_pays(narrow(large), large.weight.to(torch::kBFloat16)));
  CHECK_FALSE(winograd_pays(large.x, large.weight.to(torch::kBFloat16)));
  CHECK_FALSE(winograd_pays(narrow(in), in.weight));  // 16 channels.
  const WinogradInputs small = winograd_inputs({64, 32, 48, 2, 2}, 0);
  CHECK(winograd_pays(small.x, small.weight) == winograd_is_fast());
  CHECK_FALSE(winograd_pays(narrow(small), small.weight));
  CHECK_FALSE(winograd_pays(in.x.to(torch::kHalf), in.weight));
  CHECK_FALSE(winograd_pays(in.x.to(torch::kFloat64), in.weight.to(torch::kFloat64)));
  CHECK_FALSE(winograd_pays(in.x, torch::randn({32, 16, 1, 1}).contiguous(channels_last)));
  CHECK_FALSE(winograd_pays(in.x, torch::randn({24, 16, 3, 3}).contiguous(channels_last)));
  CHECK_FALSE(winograd_pays(in.x, torch::randn({32, 8, 3, 3}).contiguous(channels_last)));
  CHECK_FALSE(winograd_pays(in.x.slice(0, 0, 0), in.weight));
  CHECK_FALSE(winograd_pays(winograd_inputs({90, 16, 32, 1, 2}, 0).x, in.weight));
  CHECK_FALSE(winograd_pays(winograd_inputs({1, 16, 32, 5, 6}, 0).x, in.weight));
  const std::string refused = message_of<c10::Error>([&] {
    winograd_conv(in.x, torch::randn({32, 16, 5, 5}));
  });
  CHECK(contains(refused, "winograd_pays"));
}
