// One residual block of a ResNet: convolutions with batch normalisation, plus a shortcut.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/models/activation.h"
#include "trainer/models/padded_conv.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {

struct ConvShape {
  std::int64_t output_channels = 0;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
};

// A convolution without bias (batch normalisation follows), padded to keep the size at stride 1.
torch::nn::Conv2dOptions conv_options(std::int64_t input_channels, const ConvShape& shape);
torch::nn::Conv2d make_conv(std::int64_t input_channels, const ConvShape& shape);

// Children conv1, bn1, conv2, bn2 ... and, when given, downsample: torchvision's names.
class ResidualBlock : public torch::nn::Module {
 public:
  ResidualBlock(std::int64_t input_channels, const std::vector<ConvShape>& convs,
                torch::nn::Sequential downsample);

  // Returns relu(convs(x) + shortcut), where the shortcut is downsample(x); or x; or, when x is
  // smaller in channels, x strided by 2 with zero channels added on both sides (option A of the
  // ResNet paper, which has no parameters).
  Activation forward(const Activation& x);

  // Makes the block start as its shortcut: the last normalisation's scale is zero. Goyal et al.,
  // "Accurate, Large Minibatch SGD", 2017, section 5.1.
  void zero_last_norm();

 private:
  torch::Tensor shortcut(const torch::Tensor& x);

  std::vector<std::shared_ptr<PaddedConv>> convs_;
  std::vector<worker::SyncBatchNorm2d> norms_;  // Of this rank alone without --sync-bn.
  torch::nn::Sequential downsample_{nullptr};
  std::int64_t added_channels_ = 0;
};

// Of all convolutions of `network`, from LibTorch's default generator. Normalisation layers start
// as the identity by themselves, and what is linear keeps LibTorch's default.
// `blocks_as_shortcuts`: see zero_last_norm().
void draw_weights(const torch::nn::Module& network, bool blocks_as_shortcuts);

}  // namespace ddprun::trainer
