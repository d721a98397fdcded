// Convolutions on images of one pixel are those of LibTorch in double precision, up to rounding.
#include "trainer/models/padded_conv.h"

#include "tests/testing/catch.h"

using ddprun::trainer::PaddedConv;

namespace {

struct Results {
  torch::Tensor y, x_gradient, weight_gradient;
};

// In double precision, of these values or of their sizes.
Results plain_conv(const PaddedConv& conv, const torch::Tensor& x, const torch::Tensor& direction,
                   bool of_sizes) {
  const auto wide = [&](const torch::Tensor& values) {
    const torch::Tensor copy = values.detach().to(torch::kFloat64);
    return (of_sizes ? copy.abs() : copy.clone()).requires_grad_();
  };
  const torch::Tensor input = wide(x), weight = wide(conv.weight);
  const torch::Tensor y = torch::conv2d(input, weight, {}, conv.options.stride(),
                                        conv.options.kernel_size()->at(0) / 2);
  const auto gradients = torch::autograd::grad({y}, {input, weight}, {wide(direction)});
  return {y.detach(), gradients[0], gradients[1]};
}

// `sizes`: for each result the sum of the sizes of its terms.
void check_rounding(const torch::Tensor& ours, const torch::Tensor& exact,
                    const torch::Tensor& sizes) {
  const double unit = ours.scalar_type() == torch::kBFloat16 ? 0x1p-8 : 0.0;
  const torch::Tensor allowed = unit * exact.abs() + 1e-6 * sizes;
  REQUIRE(ours.sizes() == exact.sizes());
  CHECK(((ours.detach().to(torch::kFloat64) - exact).abs() <= allowed).all().item<bool>());
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

            const Results exact = plain_conv(conv, x, direction, /*of_sizes=*/false);
            const Results sizes = plain_conv(conv, x, direction, /*of_sizes=*/true);
            check_rounding(y, exact.y, sizes.y);
            check_rounding(found[0], exact.x_gradient, sizes.x_gradient);
            check_rounding(found[1], exact.weight_gradient, sizes.weight_gradient);
            CHECK(found[1].strides() == conv.weight.strides());
          }
        }
      }
    }
  }
}
