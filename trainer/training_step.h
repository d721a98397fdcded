// One optimizer step of this rank: forward and backward of its micro batches, clipping, update,
// average of the weights.
#pragma once

#include <functional>
#include <vector>

#include "trainer/training_job.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

struct StepOutput {
  torch::Tensor loss;    // Scalar: the mean over the images that are counted.
  torch::Tensor counts;  // Of these, as batch_counts() has them.
  // This rank's images; with --shards those of all shards, wherever they were computed.
  std::int64_t counted = 0;
  std::int64_t images = 0;      // Of all workers.
  torch::Tensor own_loss;       // Scalar: no number if one that this rank computed is none.
  torch::Tensor gradient_norm;  // Scalar, before clipping; undefined without --clip-grad-norm.
};

class TrainingStep {
 public:
  explicit TrainingStep(TrainingJob& job) : job_(job), parameters_(job.model->parameters()) {}

  // Gradients are averaged over all ranks, so every rank calls this with its share of the batch.
  // The position in job.state is not changed.
  StepOutput run(const torch::Tensor& images, const torch::Tensor& labels, double learning_rate);

  // After the last one: tells what a GPU had not said yet.
  void finish();

 private:
  struct Forward {
    torch::Tensor logits;  // (N, classes)
    torch::Tensor loss;    // Scalar: the mean over the N images. May have a graph.
  };

  // The batch of this rank, or of its shards.
  StepOutput run_batch(const torch::Tensor& images, const torch::Tensor& labels);
  StepOutput run_shards(const torch::Tensor& images, const torch::Tensor& labels);

  using ForwardDone = std::function<void(const Forward& all)>;

  // All micro batches: afterwards the gradients are those of the mean loss over the N images,
  // averaged over all ranks unless they stay local. `done` is called before the last backward,
  // during which gradients may travel.
  Forward forward_backward(const torch::Tensor& images, const torch::Tensor& labels,
                           const ForwardDone& done);

  // Of a micro batch. The second one adds the gradients of `share` times the loss.
  Forward forward(const torch::Tensor& images, const torch::Tensor& labels);
  void backward(const torch::Tensor& loss, double share);

  // The norm of all gradients, which are scaled down if it is larger than --clip-grad-norm.
  torch::Tensor clip();

  void update(double learning_rate);

  TrainingJob& job_;
  std::vector<torch::Tensor> parameters_;
};

}  // namespace ddprun::trainer
