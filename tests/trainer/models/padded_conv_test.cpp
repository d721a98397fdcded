// Convolutions are those of LibTorch in double precision, up to rounding; under autocast of its
// types.
#include "trainer/models/padded_conv.h"

#include "tests/testing/catch.h"
#include "trainer/kernels/winograd/winograd.h"
#include "trainer/models/winograd_conv.h"
#include "trainer/optimizer/precision.h"

using namespace ddprun::trainer;

namespace {

struct ConvResults {
  torch::Tensor y, x_gradient, weight_gradient;
};

// LibTorch's, in this type, of these values or of their sizes.
ConvResults plain_conv(const PaddedConv& conv, const torch::Tensor& x,
                       const torch::Tensor& direction, torch::ScalarType type, bool of_sizes) {
  const auto wide = [&](const torch::Tensor& values) {
    const torch::Tensor copy = values.detach().to(type);
    return (of_sizes ? copy.abs() : copy.clone()).requires_grad_();
  };
  const torch::Tensor input = wide(x), weight = wide(conv.weight);
  const torch::Tensor y = torch::conv2d(input, weight, {}, conv.options.stride(),
                                        conv.options.kernel_size()->at(0) / 2);
  const auto gradients = torch::autograd::grad({y}, {input, weight}, {wide(direction)});
  return {y.detach(), gradients[0], gradients[1]};
}

// `sizes`: for each result the sum of the sizes of its terms. `theirs`: LibTorch's in the same
// type, which on a processor without instructions for bfloat16 rounds each sum of sums. What has no
// term is 0, and not looked at in theirs: in bfloat16 the gradient of taps that meet padding alone
// is memory that nobody has written, with images of one pixel and stride 2.
void check_rounding(const torch::Tensor& ours, const torch::Tensor& exact,
                    const torch::Tensor& sizes, const torch::Tensor& theirs) {
  const auto error_of = [&](const torch::Tensor& result) {
    return (result.detach().to(torch::kFloat64) - exact).abs();
  };
  const double unit = ours.scalar_type() == torch::kBFloat16 ? 0x1p-8 : 0.0;
  const torch::Tensor their_error = torch::where(sizes > 0, error_of(theirs), 0.0).max();
  const torch::Tensor allowed =
      torch::where(sizes > 0, unit * exact.abs() + 1e-6 * sizes + their_error, 0.0);
  REQUIRE(ours.sizes() == exact.sizes());
  CHECK((error_of(ours) <= allowed).all().item<bool>());
}

}  // namespace

TEST_CASE("output and gradients are a convolution's, for every size", "[trainer][model]") {
  torch::manual_seed(1);
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const std::int64_t kernel : {1, 3, 7}) {
      for (const std::int64_t side : {1, 2, 5}) {
        for (const std::int64_t stride : {1, 2}) {
          for (const std::int64_t images : {1, 3}) {
            INFO(torch::toString(type) << ", kernel " << kernel << ", " << images << " images of "
                                       << side << ", stride " << stride);
            PaddedConv conv(torch::nn::Conv2dOptions(70, 33, kernel)
                                .stride(stride)
                                .padding(kernel / 2)
                                .bias(false));
            conv.to(type);
            const torch::Tensor x =
                torch::randn({images, 70, side, side}).to(type).requires_grad_();

            const torch::Tensor y = conv.forward(x);
            const torch::Tensor direction = torch::randn(y.sizes()).to(type);
            const auto found = torch::autograd::grad({y}, {x, conv.weight}, {direction});

            const auto plain = [&](torch::ScalarType of, bool of_sizes) {
              return plain_conv(conv, x, direction, of, of_sizes);
            };
            const ConvResults exact = plain(torch::kFloat64, /*of_sizes=*/false);
            const ConvResults sizes = plain(torch::kFloat64, /*of_sizes=*/true);
            const ConvResults theirs = plain(type, /*of_sizes=*/false);
            check_rounding(y, exact.y, sizes.y, theirs.y);
            check_rounding(found[0], exact.x_gradient, sizes.x_gradient, theirs.x_gradient);
            check_rounding(found[1], exact.weight_gradient, sizes.weight_gradient,
                           theirs.weight_gradient);
            CHECK(found[1].strides() == conv.weight.strides());
          }
        }
      }
    }
  }
}

namespace {

PaddedConv large_conv(std::int64_t stride) {
  PaddedConv conv(torch::nn::Conv2dOptions(64, 32, 3).stride(stride).padding(1).bias(false));
  conv.weight.set_data(conv.weight.contiguous(torch::MemoryFormat::ChannelsLast));
  return conv;
}

torch::Tensor images() {
  return torch::randn({3, 64, 8, 9}).contiguous(torch::MemoryFormat::ChannelsLast);
}

}  // namespace

TEST_CASE("under autocast in bf16 a convolution takes Winograd's way, with autocast's types",
          "[trainer][model]") {
  torch::manual_seed(2);
  PaddedConv conv = large_conv(1);
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    INFO(torch::toString(type));
    const torch::Tensor x = images().to(type).requires_grad_();
    const auto run = [&](const auto& forward) {
      const torch::Tensor y = [&] {
        const AutocastGuard guard(torch::kCPU, PrecisionOption::Bf16);
        return forward(x);
      }();
      REQUIRE(y.scalar_type() == torch::kBFloat16);
      torch::manual_seed(3);
      const torch::Tensor direction = torch::randn(y.sizes()).to(torch::kBFloat16);
      const auto gradients = torch::autograd::grad({y}, {x, conv.weight}, {direction});
      CHECK(gradients[0].scalar_type() == type);
      CHECK(gradients[1].scalar_type() == torch::kFloat32);
      return std::vector<torch::Tensor>{y.detach(), gradients[0], gradients[1]};
    };

    const auto found = run([&](const torch::Tensor& in) { return conv.forward(in); });

    const auto plain =
        run([&](const torch::Tensor& in) { return torch::conv2d(in, conv.weight, {}, 1, 1); });
    for (std::size_t i = 0; i < found.size(); ++i) {
      const torch::Tensor ours = found[i].to(torch::kFloat64),
                          theirs = plain[i].to(torch::kFloat64);
      const double size = theirs.square().mean().sqrt().item<double>();
      CHECK((ours - theirs).abs().max().item<double>() <= 0.05 * size);
    }
    // Else LibTorch's way is the faster one.
    const bool pays = winograd_is_fast() && !has_bfloat16_tiles();
    const torch::Tensor winograd = winograd_conv(x.to(torch::kBFloat16), conv.weight);
    CHECK(torch::equal(found[0], winograd) == pays);
    CHECK(torch::equal(found[0], plain[0]) != pays);
  }
}

TEST_CASE("where Winograd's way is closed, a convolution under autocast is LibTorch's",
          "[trainer][model]") {
  torch::manual_seed(4);
  const torch::Tensor x = images();
  for (const auto precision : {PrecisionOption::Bf16, PrecisionOption::Fp16}) {
    const std::int64_t stride = precision == PrecisionOption::Bf16 ? 2 : 1;
    PaddedConv conv = large_conv(stride);
    const AutocastGuard guard(torch::kCPU, precision);
    CHECK(torch::equal(conv.forward(x), torch::conv2d(x, conv.weight, {}, stride, 1)));
  }
  PaddedConv conv = large_conv(1);
  CHECK_THROWS(conv.forward(x.to(torch::kBFloat16)));  // Two types, and nobody to convert one.
  conv.to(torch::kBFloat16);
  const torch::Tensor narrow = x.to(torch::kBFloat16);
  CHECK(torch::equal(conv.forward(narrow), torch::conv2d(narrow, conv.weight, {}, 1, 1)));
}

TEST_CASE("whoever forbids Winograd's way gets LibTorch's convolutions, bit for bit",
          "[trainer][model]") {
  torch::manual_seed(5);
  const torch::Tensor x = images();
  PaddedConv conv = large_conv(1);
  const torch::Tensor plain = torch::conv2d(x, conv.weight, {}, 1, 1);
  if (winograd_is_fast()) CHECK_FALSE(torch::equal(conv.forward(x), plain));

  allow_winograd(false);
  const torch::Tensor direct = conv.forward(x);
  allow_winograd(true);

  CHECK(torch::equal(direct, plain));
}
