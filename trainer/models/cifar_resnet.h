// ResNet-20/32/44/56/110 for small images: 3x3 stem, three layers of 16, 32 and 64 channels with
// depth = 6n + 2, and shortcuts without parameters (option A).
//
// He et al., "Deep Residual Learning for Image Recognition", 2015, section 4.2.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/models/image_classifier.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {

class ResidualBlock;

class CifarResNet : public ImageClassifier {
 public:
  // depth: 6n + 2. Weights: as ResNet's, from LibTorch's default generator.
  CifarResNet(std::int64_t depth, std::int64_t input_channels, std::int64_t classes,
              bool zero_init_residual = false);

  torch::Tensor forward(torch::Tensor images) override;
  std::int64_t normalized_stride() const override { return 4; }

 private:
  torch::nn::Conv2d conv1_{nullptr};
  worker::SyncBatchNorm2d bn1_{nullptr};
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace ddprun::trainer
