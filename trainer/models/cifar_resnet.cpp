// The same blocks as ResNet's, without `downsample`: they pad their shortcut themselves (option A).
#include "trainer/models/cifar_resnet.h"

#include <string>

#include "trainer/models/batch_norm_relu.h"
#include "trainer/models/residual_block.h"

namespace ddprun::trainer {

CifarResNet::CifarResNet(std::int64_t depth, std::int64_t input_channels, std::int64_t classes,
                         bool zero_init_residual) {
  TORCH_CHECK(depth >= 8 && (depth - 2) % 6 == 0, "a CIFAR ResNet has 6n + 2 layers, not ", depth);
  conv1_ = register_module("conv1", make_conv(input_channels, {16, 3, 1}));
  bn1_ = register_module("bn1", worker::SyncBatchNorm2d(16));
  std::int64_t channels = 16;
  for (int index = 0; index < 3; ++index) {
    const std::int64_t width = std::int64_t{16} << index;
    auto layer =
        register_module("layer" + std::to_string(index + 1), std::make_shared<torch::nn::Module>());
    for (std::int64_t i = 0; i < (depth - 2) / 6; ++i) {
      const std::int64_t stride = i == 0 && index > 0 ? 2 : 1;
      auto block = std::make_shared<ResidualBlock>(
          channels, std::vector<ConvShape>{{width, 3, stride}, {width, 3, 1}},
          torch::nn::Sequential(nullptr));
      blocks_.push_back(layer->register_module(std::to_string(i), block));
      channels = width;
    }
  }
  fc_ = register_module("fc", torch::nn::Linear(channels, classes));
  draw_weights(*this, zero_init_residual);
}

torch::Tensor CifarResNet::forward(torch::Tensor images) {
  Activation x = batch_norm_relu(*bn1_, conv1_->forward(images));
  for (const auto& block : blocks_) {
    begin_block();
    x = block->forward(x);
  }
  return fc_->forward(torch::adaptive_avg_pool2d(x.first, {1, 1}).flatten(1));
}

}  // namespace ddprun::trainer
