// torchvision's order of layers and initialisation: the same seed draws the same numbers.
#include "trainer/models/resnet.h"

#include <string>

#include "trainer/models/batch_norm_relu.h"
#include "trainer/models/residual_block.h"
#include "trainer/models/stem_pool.h"

namespace ddprun::trainer {

ResNet::ResNet(const ResNetOptions& options) : options_(options) {
  const bool imagenet = options.stem == Stem::ImageNet;
  const ConvShape stem{
      .output_channels = 64, .kernel = imagenet ? 7 : 3, .stride = imagenet ? 2 : 1};
  conv1_ = register_module("conv1", make_conv(options.input_channels, stem));
  bn1_ = register_module("bn1", worker::SyncBatchNorm2d(64));
  for (int index = 0; index < 4; ++index) {
    add_layer(index, std::int64_t{64} << index, index == 0 ? 1 : 2);
  }
  fc_ = register_module("fc", torch::nn::Linear(channels_, options.classes));
  draw_weights(*this, options.zero_init_residual);
}

void ResNet::add_layer(int index, std::int64_t width, std::int64_t stride) {
  const std::int64_t output = options_.bottleneck ? 4 * width : width;
  auto layer =
      register_module("layer" + std::to_string(index + 1), std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < options_.blocks[index]; ++i) {
    const std::int64_t block_stride = i == 0 ? stride : 1;
    // Before the block, as torchvision makes it: layers draw random numbers when they are made, and
    // the same seed must give the same weights.
    torch::nn::Sequential downsample{nullptr};
    if (block_stride != 1 || channels_ != output) {
      downsample = torch::nn::Sequential(make_conv(channels_, {output, 1, block_stride}),
                                         worker::SyncBatchNorm2d(output));
    }
    std::vector<ConvShape> convs;
    if (options_.bottleneck) {
      convs = {{width, 1, 1}, {width, 3, block_stride}, {output, 1, 1}};
    } else {
      convs = {{width, 3, block_stride}, {width, 3, 1}};
    }
    auto block = std::make_shared<ResidualBlock>(channels_, convs, downsample);
    blocks_.push_back(layer->register_module(std::to_string(i), block));
    channels_ = output;
  }
}

torch::Tensor ResNet::forward(torch::Tensor images) {
  Activation x = batch_norm_relu(*bn1_, conv1_->forward(images));
  if (options_.stem == Stem::ImageNet) x.first = x.second = stem_pool(x.first);
  for (const auto& block : blocks_) {
    begin_block();
    x = block->forward(x);
  }
  return fc_->forward(torch::adaptive_avg_pool2d(x.first, {1, 1}).flatten(1));
}

std::int64_t ResNet::normalized_stride() const { return options_.stem == Stem::ImageNet ? 32 : 8; }

}  // namespace ddprun::trainer
