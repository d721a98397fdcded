// Convolutions on images of one pixel are those of LibTorch.
#include "trainer/models/padded_conv.h"

#include "tests/testing/catch.h"

using ddprun::trainer::PaddedConv;

TEST_CASE("output and gradients are a convolution's, for every size", "[trainer][model]") {
  for (const std::int64_t kernel : {1, 3, 7}) {
    for (const std::int64_t side : {1, 2, 5}) {
      for (const std::int64_t stride : {1, 2}) {
        INFO("kernel " << kernel << ", image " << side << ", stride " << stride);
        PaddedConv conv(
            torch::nn::Conv2dOptions(6, 4, kernel).stride(stride).padding(kernel / 2).bias(false));
        const torch::Tensor x = torch::randn({3, 6, side, side}, torch::requires_grad());

        const torch::Tensor ours = conv.forward(x);
        const torch::Tensor expected = torch::conv2d(x, conv.weight, {}, stride, kernel / 2);

        REQUIRE(ours.sizes() == expected.sizes());
        CHECK(torch::allclose(ours, expected, 1e-5, 1e-6));
        const torch::Tensor weights = torch::randn_like(expected);
        const auto gradients = [&](const torch::Tensor& output) {
          return torch::autograd::grad({(output * weights).sum()}, {x, conv.weight});
        };
        const auto found = gradients(ours), wanted = gradients(expected);
        CHECK(torch::allclose(found[0], wanted[0], 1e-5, 1e-6));
        CHECK(torch::allclose(found[1], wanted[1], 1e-5, 1e-6));
        CHECK(found[1].strides() == wanted[1].strides());
      }
    }
  }
}
