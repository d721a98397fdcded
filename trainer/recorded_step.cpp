// The order of a replay: inputs, graph, and the communicator's watch over its collectives.
#include "trainer/recorded_step.h"

#include <fmt/format.h>

#include <utility>

#include "worker/progress_page.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {

RecordedStep::RecordedStep(TrainingJob& job, Work work)
    : job_(job),
      work_(std::move(work)),
      schedule_(job.plan.batch_size),
      graph_(make_step_graph(job.place.device)) {
  inputs_.rate_there = torch::zeros({}, torch::dtype(torch::kFloat32).device(job.place.device));
}

StepOutput RecordedStep::run(const torch::Tensor& images, const torch::Tensor& labels,
                             double learning_rate) {
  inputs_.rate_there.fill_(learning_rate);
  const StepInputs given{images, labels, learning_rate, inputs_.rate_there};
  const GraphDecision decision = schedule_.next(images.size(0));
  if (!decision.reason.empty()) {
    job_.reporter->line(fmt::format("Step {}: {}", job_.state.step + 1, decision.reason));
  }
  if (decision.way == StepWay::Eager) return work_(given);
  if (decision.way == StepWay::Record) record(given);
  inputs_.images.copy_(images, /*non_blocking=*/true);
  inputs_.labels.copy_(labels, /*non_blocking=*/true);
  job_.phase("replay");
  worker::ProgressPage::own().computes();
  graph_->replay();
  if (job_.env.world_size > 1) {
    job_.communicator().replayed(worker::current_stream(job_.place.device));
  }
  return output_;
}

void RecordedStep::record(const StepInputs& like) {
  inputs_.images = torch::empty_like(like.images);
  inputs_.labels = torch::empty_like(like.labels);
  job_.optimizer->begin_recording();
  graph_->record([this] { output_ = work_(inputs_); });
  job_.optimizer->end_recording();
}

}  // namespace ddprun::trainer
