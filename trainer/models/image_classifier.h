// What every network of this folder is: images in, one score per class out.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

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

  // Called before each block of a forward, which ends with what it throws: that of a step that is
  // lost need not be computed to its end. Empty: nothing. A network without blocks does not call.
  void on_block(std::function<void()> call) { on_block_ = std::move(call); }

 protected:
  void begin_block() const {
    if (on_block_) on_block_();
  }

 private:
  std::function<void()> on_block_;
};

}  // namespace ddprun::trainer
