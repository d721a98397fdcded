// ResNet-18/34/50/101/152 with torchvision's topology ("v1.5": a bottleneck's stride sits in its
// 3x3 convolution), parameter names and initialisation, so that state moves both ways by name.
//
//   conv1 bn1 [maxpool]   layer1 .. layer4 (64 128 256 512 channels, stride 1 2 2 2)   avgpool fc
//
// He et al., "Deep Residual Learning for Image Recognition", 2015, table 1.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/models/image_classifier.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {

enum class Stem {
  ImageNet,  // 7x7 stride 2 and a 3x3 max-pool: sides shrink by 4 before layer1.
  Small,     // 3x3 stride 1, no pool: for images up to 64 pixels.
};

struct ResNetOptions {
  std::array<std::int64_t, 4> blocks{2, 2, 2, 2};  // Residual blocks of layer1 .. layer4.
  bool bottleneck = false;                         // 1x1-3x3-1x1 blocks, output 4 times as wide.
  Stem stem = Stem::ImageNet;
  std::int64_t input_channels = 3;
  std::int64_t classes = 1000;
  bool zero_init_residual = false;  // Blocks start as their shortcuts.
};

class ResidualBlock;

class ResNet : public ImageClassifier {
 public:
  // The weights come from LibTorch's default generator, drawn in torchvision's order: the same
  // manual_seed gives the same weights as torchvision does in Python.
  explicit ResNet(const ResNetOptions& options);

  torch::Tensor forward(torch::Tensor images) override;
  std::int64_t normalized_stride() const override;

 private:
  void add_layer(int index, std::int64_t width, std::int64_t stride);

  ResNetOptions options_;
  std::int64_t channels_ = 64;  // Output of the last block so far, while layers are added.
  torch::nn::Conv2d conv1_{nullptr};
  worker::SyncBatchNorm2d bn1_{nullptr};
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;  // All layers' blocks, in order.
  torch::nn::Linear fc_{nullptr};
};

}  // namespace ddprun::trainer
