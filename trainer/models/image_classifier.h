// What every network of this folder is: images in, one score per class out.
#pragma once

#include <cstdint>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class ImageClassifier : public torch::nn::Module {
 public:
  // images: (N, C, H, W) float. Returns logits (N, classes).
  virtual torch::Tensor forward(torch::Tensor images) = 0;

  // By how much the network shrinks the sides of an image before its last batch normalisation;
  // 0 = it has none. A batch of one image of at most this side cannot be trained on, because
  // normalisation then sees a single value per channel.
  virtual std::int64_t normalized_stride() const = 0;
};

}  // namespace ddprun::trainer
