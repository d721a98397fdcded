// What goes into an optimizer step of this rank, and what comes out of it.
#pragma once

#include <cstdint>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

struct StepInputs {
  torch::Tensor images, labels;  // (N, C, H, W) and (N), on the device.
  double learning_rate = 0;
  torch::Tensor rate_there;  // Scalar, float32: the rate in the device's memory, where that counts.
};

struct StepOutput {
  torch::Tensor loss;    // Scalar: the mean over the images that are counted.
  torch::Tensor counts;  // Of these, as batch_counts() has them.
  // This rank's images; with --shards those of all shards, wherever they were computed.
  std::int64_t counted = 0;
  std::int64_t images = 0;      // Of all workers.
  torch::Tensor own_loss;       // Scalar: no number if one that this rank computed is none.
  torch::Tensor gradient_norm;  // Scalar, before clipping; undefined without --clip-grad-norm.
};

}  // namespace ddprun::trainer
