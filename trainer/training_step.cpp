// See training_step.h.
#include "trainer/training_step.h"

#include <algorithm>
#include <optional>

#include "trainer/clip_gradients.h"

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
  StepOutput output = forward_backward(images, labels);
  output.gradient_norm = clip();
  update(learning_rate);
  return output;
}

StepOutput TrainingStep::forward_backward(const torch::Tensor& images,
                                          const torch::Tensor& labels) {
  const std::int64_t all = images.size(0);
  const std::int64_t micro = job_.plan.micro_batch_size;
  if (all <= micro) return run_micro_batch(images, labels, 1);
  StepOutput output{{}, labels, {}, {}};
  std::vector<torch::Tensor> logits;
  for (std::int64_t begin = 0; begin < all; begin += micro) {
    const std::int64_t size = std::min(micro, all - begin);
    // Only the last backward reduces, and then the sum of all.
    std::optional<worker::DataParallelCore::NoSync> local;
    if (begin + size < all) local.emplace(*job_.parallel);
    const double share = static_cast<double>(size) / static_cast<double>(all);
    const StepOutput part =
        run_micro_batch(images.narrow(0, begin, size), labels.narrow(0, begin, size), share);
    logits.push_back(part.logits);
    output.loss = output.loss.defined() ? output.loss + part.loss * share : part.loss * share;
  }
  output.logits = torch::cat(logits);
  return output;
}

StepOutput TrainingStep::run_micro_batch(const torch::Tensor& images, const torch::Tensor& labels,
                                         double share) {
  const torch::Tensor logits = job_.parallel->forward(images);
  const torch::Tensor loss =
      torch::cross_entropy_loss(logits, labels, /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-100, job_.options.label_smoothing);
  // Returns when the gradients are averaged over all ranks, unless they stay local.
  (share == 1 ? loss : loss * share).backward();
  return {logits.detach(), labels, loss.detach(), {}};
}

torch::Tensor TrainingStep::clip() {
  if (!job_.options.clip_grad_norm) return {};
  return clip_gradients(parameters_, *job_.options.clip_grad_norm);
}

void TrainingStep::update(double learning_rate) {
  job_.optimizer->step(learning_rate);
  if (job_.average) job_.average->update();
}

}  // namespace ddprun::trainer
