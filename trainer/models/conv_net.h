// The small network of PyTorch's classic MNIST example: two 5x5 convolutions (10 and 20 channels),
// each with 2x2 max-pooling, then layers of 50 and `classes`, with dropout. For 28x28 images.
#pragma once

#include <cstdint>

#include "trainer/models/image_classifier.h"

namespace ddprun::trainer {

class ConvNet : public ImageClassifier {
 public:
  ConvNet(std::int64_t input_channels, std::int64_t image_size, std::int64_t classes);

  torch::Tensor forward(torch::Tensor images) override;
  std::int64_t normalized_stride() const override { return 0; }

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::Dropout2d conv2_drop_{nullptr};
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
};

}  // namespace ddprun::trainer
