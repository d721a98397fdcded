// One optimizer step of this rank: forward and backward of its micro batches, clipping, update,
// average of the weights.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "trainer/optimizer/working_copies.h"
#include "trainer/recorded_step.h"
#include "trainer/step_data.h"
#include "trainer/training_job.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Of a run, since with --cuda-graph its graph serves all epochs. Must go before the communicator.
class TrainingStep {
 public:
  explicit TrainingStep(TrainingJob& job);
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // Gradients are averaged over all ranks, so every rank calls this with its share of the batch.
  // The position in job.state is not changed.
  StepOutput run(const torch::Tensor& images, const torch::Tensor& labels, double learning_rate);

  // With --cuda-graph: gives back the memory of what was recorded. No step follows.
  void forget_graph() { recorded_.reset(); }

  // After the last one of an epoch: tells what a GPU had not said yet.
  void finish();

 private:
  struct Forward {
    torch::Tensor logits;  // (N, classes)
    torch::Tensor loss;    // Scalar: the mean over the N images. May have a graph.
  };

  // All that is done on the device.
  StepOutput compute(const StepInputs& inputs);

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

  void update(const StepInputs& inputs);

  TrainingJob& job_;
  std::vector<torch::Tensor> parameters_;
  std::optional<WorkingCopies> copies_;   // With --working-copies.
  std::optional<RecordedStep> recorded_;  // With --cuda-graph.
};

}  // namespace ddprun::trainer
