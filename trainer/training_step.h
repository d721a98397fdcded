// One optimizer step of this rank: forward, loss, backward, update.
#pragma once

#include <torch/torch.h>

#include "trainer/data/batch_loader.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

struct StepOutput {
  torch::Tensor logits;  // (N, classes)
  torch::Tensor labels;  // (N) int64, on the device.
  torch::Tensor loss;    // Scalar: the mean over the batch.
};

class TrainingStep {
 public:
  explicit TrainingStep(TrainingJob& job) : job_(job) {}

  // Gradients are averaged over all ranks, so every rank calls this with its share of the batch.
  // The position in job.state is not changed.
  StepOutput run(const torch::Tensor& images, const torch::Tensor& labels, double learning_rate);

 private:
  TrainingJob& job_;
};

}  // namespace ddprun::trainer
