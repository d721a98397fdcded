// Layers by the names of PyTorch's example, so that its weights can be loaded.
#include "trainer/models/conv_net.h"

#include <fmt/format.h>

#include <stdexcept>

namespace ddprun::trainer {
namespace {

[[noreturn]] void throw_too_small(const char* model, int least, std::int64_t image_size) {
  throw std::invalid_argument(
      fmt::format("{} needs images of at least {} pixels, not {}", model, least, image_size));
}

}  // namespace

ConvNet::ConvNet(std::int64_t input_channels, std::int64_t image_size, std::int64_t classes) {
  const std::int64_t side = ((image_size - 4) / 2 - 4) / 2;  // 4 for 28x28.
  if (side < 1) throw_too_small("convnet", 16, image_size);
  conv1_ = register_module("conv1", torch::nn::Conv2d(input_channels, 10, 5));
  conv2_ = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
  conv2_drop_ = register_module("conv2_drop", torch::nn::Dropout2d());
  fc1_ = register_module("fc1", torch::nn::Linear(20 * side * side, 50));
  fc2_ = register_module("fc2", torch::nn::Linear(50, classes));
}

torch::Tensor ConvNet::forward(torch::Tensor images) {
  torch::Tensor x = torch::max_pool2d(conv1_->forward(images), 2).relu_();
  x = torch::max_pool2d(conv2_drop_->forward(conv2_->forward(x)), 2).relu_();
  x = fc1_->forward(x.flatten(1)).relu_();
  return fc2_->forward(torch::dropout(x, 0.5, is_training()));
}

LargeConvNet::LargeConvNet(std::int64_t input_channels, std::int64_t image_size,
                           std::int64_t classes) {
  const std::int64_t side = image_size / 2 / 2;  // 7 for 28x28.
  if (side < 1) throw_too_small("convnet-large", 4, image_size);
  const auto padded = [](std::int64_t from, std::int64_t to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 5).padding(2));
  };
  conv1_ = register_module("conv1", padded(input_channels, 16));
  conv2_ = register_module("conv2", padded(16, 32));
  fc_ = register_module("fc", torch::nn::Linear(32 * side * side, classes));
}

torch::Tensor LargeConvNet::forward(torch::Tensor images) {
  torch::Tensor x = torch::max_pool2d(conv1_->forward(images).relu_(), 2);
  x = torch::max_pool2d(conv2_->forward(x).relu_(), 2);
  return fc_->forward(x.flatten(1));
}

}  // namespace ddprun::trainer
