// One optimizer step of this rank: forward and backward of its micro batches, clipping, update,
// average of the weights.
#pragma once

#include <vector>

#include "trainer/training_job.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

struct StepOutput {
  torch::Tensor logits;         // (N, classes)
  torch::Tensor labels;         // (N) int64, on the device.
  torch::Tensor loss;           // Scalar: the mean over the N images.
  torch::Tensor gradient_norm;  // Scalar, before clipping; undefined without --clip-grad-norm.
};

class TrainingStep {
 public:
  explicit TrainingStep(TrainingJob& job) : job_(job), parameters_(job.model->parameters()) {}

  // Gradients are averaged over all ranks, so every rank calls this with its share of the batch.
  // The position in job.state is not changed.
  StepOutput run(const torch::Tensor& images, const torch::Tensor& labels, double learning_rate);

 private:
  // All micro batches: afterwards the gradients are those of the mean loss over the N images,
  // averaged over all ranks.
  StepOutput forward_backward(const torch::Tensor& images, const torch::Tensor& labels);

  // Adds the gradients of `share` times the mean loss over one micro batch.
  StepOutput run_micro_batch(const torch::Tensor& images, const torch::Tensor& labels,
                             double share);

  // The norm of all gradients, which are scaled down if it is larger than --clip-grad-norm.
  torch::Tensor clip();

  void update(double learning_rate);

  TrainingJob& job_;
  std::vector<torch::Tensor> parameters_;
};

}  // namespace ddprun::trainer
