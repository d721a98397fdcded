// See training_step.h.
#include "trainer/training_step.h"

namespace ddprun::trainer {
namespace {

// What a step draws at random (dropout) depends on the seed, the step and the rank alone, so a
// resumed run draws what the interrupted one would have drawn.
void seed_step(const TrainingJob& job) {
  const auto place = static_cast<std::uint64_t>(job.state.step * job.env.world_size + job.env.rank);
  torch::manual_seed(job.options.seed * 0x9e3779b97f4a7c15U + place);
}

}  // namespace

StepOutput TrainingStep::run(const torch::Tensor& images, const torch::Tensor& labels,
                             double learning_rate) {
  seed_step(job_);
  job_.parallel->zero_grad();
  StepOutput output{job_.parallel->forward(images), labels, {}};
  output.loss = torch::cross_entropy_loss(output.logits, labels);
  output.loss.backward();  // Returns when the gradients are averaged over all ranks.
  job_.optimizer->step(learning_rate);
  return output;
}

}  // namespace ddprun::trainer
