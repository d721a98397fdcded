// Registers layers by torchvision's names, which are what a file of weights knows them by.
#include "trainer/models/residual_block.h"

#include <string>

#include "trainer/models/batch_norm_relu.h"

namespace ddprun::trainer {

torch::nn::Conv2dOptions conv_options(std::int64_t input_channels, const ConvShape& shape) {
  return torch::nn::Conv2dOptions(input_channels, shape.output_channels, shape.kernel)
      .stride(shape.stride)
      .padding(shape.kernel / 2)
      .bias(false);
}

torch::nn::Conv2d make_conv(std::int64_t input_channels, const ConvShape& shape) {
  return torch::nn::Conv2d(conv_options(input_channels, shape));
}

ResidualBlock::ResidualBlock(std::int64_t input_channels, const std::vector<ConvShape>& convs,
                             torch::nn::Sequential downsample)
    : downsample_(std::move(downsample)) {
  std::int64_t channels = input_channels;
  for (std::size_t i = 0; i < convs.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    convs_.push_back(register_module(
        "conv" + number, std::make_shared<PaddedConv>(conv_options(channels, convs[i]))));
    channels = convs[i].output_channels;
    norms_.push_back(register_module("bn" + number, worker::SyncBatchNorm2d(channels)));
  }
  if (!downsample_.is_empty()) {
    register_module("downsample", downsample_);
  } else {
    added_channels_ = channels - input_channels;
  }
}

Activation ResidualBlock::forward(const Activation& x) {
  Activation y = x;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    const bool last = i + 1 == convs_.size();
    // The shortcut is added within the last normalisation, which passes over the memory anyway.
    y = batch_norm_relu(*norms_[i], convs_[i]->forward(y.first),
                        last ? shortcut(x.second) : torch::Tensor());
  }
  return y;
}

void ResidualBlock::zero_last_norm() {
  const torch::NoGradGuard no_grad;
  norms_.back()->weight.zero_();
}

torch::Tensor ResidualBlock::shortcut(const torch::Tensor& x) {
  if (!downsample_.is_empty()) {
    return batch_norm(*downsample_[1]->as<worker::SyncBatchNorm2d>(),
                      downsample_[0]->as<torch::nn::Conv2d>()->forward(x));
  }
  if (added_channels_ == 0) return x;
  using torch::indexing::None;
  using torch::indexing::Slice;
  const torch::Tensor strided =
      x.index({Slice(), Slice(), Slice(None, None, 2), Slice(None, None, 2)});
  const std::int64_t before = added_channels_ / 2;
  return torch::constant_pad_nd(strided, {0, 0, 0, 0, before, added_channels_ - before});
}

void draw_weights(const torch::nn::Module& network, bool blocks_as_shortcuts) {
  torch::NoGradGuard no_grad;
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (auto* conv = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
    }
    auto* block = module->as<ResidualBlock>();
    if (block != nullptr && blocks_as_shortcuts) block->zero_last_norm();
  }
}

}  // namespace ddprun::trainer
