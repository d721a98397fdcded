// The two small networks that tutorials train on MNIST's 28x28 images, both of two 5x5 convolutions
// with 2x2 max-pooling after each.
#pragma once

#include <cstdint>

#include "trainer/models/image_classifier.h"

namespace ddprun::trainer {

// That of PyTorch's classic MNIST example: 10 and 20 channels without padding, then layers of 50
// and `classes`, with dropout.
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

// That of tutorials which leave dropout out: 16 and 32 channels, padded, then one layer to
// `classes`. 28,938 parameters for MNIST.
class LargeConvNet : public ImageClassifier {
 public:
  LargeConvNet(std::int64_t input_channels, std::int64_t image_size, std::int64_t classes);

  torch::Tensor forward(torch::Tensor images) override;
  std::int64_t normalized_stride() const override { return 0; }

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::Linear fc_{nullptr};
};

}  // namespace ddprun::trainer
