// A screen of functions, one for each thing that a step does, in the order in which it does them.
#include "trainer/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "trainer/optimizer/clip_gradients.h"
#include "trainer/report/meters.h"
#include "trainer/shards/sharded_batch.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::trainer {
namespace {

// What a step draws at random (dropout) depends on the seed, the step and the rank or shard alone,
// so a resumed run draws what the interrupted one would have drawn.
void seed_step(const TrainingJob& job, int replicas, int replica) {
  const auto place = static_cast<std::uint64_t>(job.state.step * replicas + replica);
  torch::manual_seed(job.options.seed * 0x9e3779b97f4a7c15U + place);
}

void report_loss_scale(TrainingJob& job, bool wait) {
  for (const auto& [step, decision] : job.precision->take_decisions(wait)) {
    if (decision.reason.empty()) continue;
    if (!decision.take_step) {
      job.reporter->warning(fmt::format("step {}: {}; the next scale is {}", step, decision.reason,
                                        decision.scale_after));
    }
    job.reporter->event("loss_scale", {{"step", step},
                                       {"taken", decision.take_step},
                                       {"scale", decision.scale_after},
                                       {"reason", decision.reason}});
  }
}

}  // namespace

TrainingStep::TrainingStep(TrainingJob& job) : job_(job), parameters_(job.model->parameters()) {
  if (job.kernels.copies) {
    copies_.emplace(*job.model, type_of(job.options.precision));
    if (job.optimizer->writes_copies()) job.optimizer->write_copies(copies_->all());
  }
  if (!job.options.cuda_graph) return;
  recorded_.emplace(job, [this](const StepInputs& inputs) { return compute(inputs); });
}

StepOutput TrainingStep::run(const torch::Tensor& images, const torch::Tensor& labels,
                             double learning_rate) {
  // Before a recording, which may not change the seed, and before each of its replays.
  if (!job_.shards) seed_step(job_, job_.env.world_size, job_.env.rank);
  StepOutput output = recorded_ ? recorded_->run(images, labels, learning_rate)
                                : compute({images, labels, learning_rate, {}});
  job_.precision->step_done(job_.state.step + 1);
  report_loss_scale(job_, /*wait=*/false);
  return output;
}

StepOutput TrainingStep::compute(const StepInputs& inputs) {
  job_.parallel->zero_grad();
  StepOutput output = job_.shards ? run_shards(inputs.images, inputs.labels)
                                  : run_batch(inputs.images, inputs.labels);
  job_.phase("optimizer");
  if (job_.precision->accept(parameters_)) {
    output.gradient_norm = clip();
    update(inputs);
  }
  return output;
}

void TrainingStep::finish() { report_loss_scale(job_, /*wait=*/true); }

StepOutput TrainingStep::run_batch(const torch::Tensor& images, const torch::Tensor& labels) {
  const Forward done = forward_backward(images, labels, {});
  const torch::Tensor loss = done.loss.detach();
  return {.loss = loss,
          .counts = batch_counts(done.logits, labels, loss),
          .counted = labels.size(0),
          .images = labels.size(0) * job_.env.world_size,
          .own_loss = loss,
          .gradient_norm = {}};
}

StepOutput TrainingStep::run_shards(const torch::Tensor& images, const torch::Tensor& labels) {
  const auto run_shard = [this](int shard, const torch::Tensor& of_images,
                                const torch::Tensor& of_labels) {
    seed_step(job_, job_.plan.replicas, shard);
    forward_backward(of_images, of_labels, [&](const Forward& done) {
      job_.shards->forward_done(done.loss, batch_counts(done.logits, of_labels, done.loss));
    });
  };
  const ShardedFigures all = job_.shards->run(*job_.parallel, images, labels, run_shard);
  return {.loss = all.loss,
          .counts = all.counts,
          .counted = all.images,
          .images = all.images,
          .own_loss = all.own_loss,
          .gradient_norm = {}};
}

TrainingStep::Forward TrainingStep::forward_backward(const torch::Tensor& images,
                                                     const torch::Tensor& labels,
                                                     const ForwardDone& done) {
  const std::int64_t all = images.size(0);
  const std::int64_t micro = job_.plan.micro_batch_size;
  if (all <= micro) {
    const Forward only = forward(images, labels);
    if (done) done(only);
    backward(only.loss, 1);
    return only;
  }
  Forward output;
  std::vector<torch::Tensor> logits;
  for (std::int64_t begin = 0; begin < all; begin += micro) {
    const std::int64_t size = std::min(micro, all - begin);
    const bool last = begin + size == all;
    // Only the last backward reduces, and then the sum of all.
    std::optional<worker::DistributedDataParallelBase::NoSync> local;
    if (!last) local.emplace(*job_.parallel);
    const double share = static_cast<double>(size) / static_cast<double>(all);
    const Forward part = forward(images.narrow(0, begin, size), labels.narrow(0, begin, size));
    logits.push_back(part.logits);
    output.loss = output.loss.defined() ? output.loss + part.loss.detach() * share
                                        : part.loss.detach() * share;
    if (last) output.logits = torch::cat(logits);
    if (last && done) done(output);
    backward(part.loss, share);
  }
  return output;
}

TrainingStep::Forward TrainingStep::forward(const torch::Tensor& images,
                                            const torch::Tensor& labels) {
  job_.phase("forward");
  if (job_.shards) job_.shards->begin_micro_batch();
  const AutocastGuard autocast = job_.precision->autocast();
  std::optional<WorkingCopies::Use> copies;
  if (copies_) copies.emplace(*copies_);
  torch::Tensor logits = job_.parallel->forward(images);
  // The short types grow to float32; a model in double precision keeps its own.
  logits = logits.to(torch::promoteTypes(logits.scalar_type(), torch::kFloat32));
  const torch::Tensor loss =
      torch::cross_entropy_loss(logits, labels, /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-100, job_.options.label_smoothing);
  return {logits.detach(), loss};
}

void TrainingStep::backward(const torch::Tensor& loss, double share) {
  job_.phase("backward");
  // Returns when the gradients are averaged over all ranks, unless they stay local.
  job_.precision->scaled(share == 1 ? loss : loss * share).backward();
}

torch::Tensor TrainingStep::clip() {
  if (!job_.options.clip_grad_norm) return {};
  return clip_gradients(parameters_, *job_.options.clip_grad_norm);
}

void TrainingStep::update(const StepInputs& inputs) {
  job_.optimizer->step(inputs.learning_rate, job_.precision->device_scale(), inputs.rate_there);
  if (copies_) copies_->weights_changed(/*copies_too=*/job_.optimizer->writes_copies());
  if (job_.average) job_.average->update();
}

}  // namespace ddprun::trainer
