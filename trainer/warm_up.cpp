// On a model of its own: batch normalisation would remember the zeros.
#include "trainer/warm_up.h"

#include <algorithm>
#include <cstdlib>

#include "trainer/batch_plan.h"
#include "trainer/device/device.h"
#include "trainer/make_training_job.h"
#include "trainer/optimizer/precision.h"
#include "worker/torch/libtorch.h"
#include "worker/worker_env.h"

namespace ddprun::trainer {
namespace {

void run_zeros(const TrainingJob& job) {
  // Where the world's size decides the batch, that of this node is the best guess.
  const BatchPlan plan = plan_batch_sizes(job.options, workers_of_node(), UnevenBatch::Rounded);
  const auto model = new_model(job);
  auto images = torch::zeros(
      {plan.micro_batch_size, job.dataset().shape().channels, job.image_size, job.image_size});
  if (job.options.layout != LayoutOption::Nchw) {
    lay_channels_last(*model);
    images = images.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  const auto labels = torch::zeros({plan.micro_batch_size}, torch::kLong);
  const Precision precision(job.options.precision, torch::kCPU);
  torch::Tensor loss;
  {
    const AutocastGuard autocast = precision.autocast();
    const auto logits = model->forward(images);
    loss = torch::cross_entropy_loss(logits.to(torch::kFloat32), labels);
  }
  loss.backward();
}

}  // namespace

int workers_of_node() {
  const auto text = worker::environment_variable("LOCAL_WORLD_SIZE");
  return text ? std::max(1, std::atoi(text->c_str())) : 1;
}

void warm_up(TrainingJob& job, const TrainOptions& options) {
  const bool gpu = prepare_for_gpu(options);  // Before a seed.
  try {
    prepare_training_job(job, options);
  } catch (const std::exception&) {
    job.model.reset();
    job.training_set.reset();
    job.validation_set.reset();
    return;
  }
  // What is compiled for the CPU is of no use to a GPU, whose context is made with the
  // communicator.
  if (gpu) return;
  try {
    run_zeros(job);
  } catch (const std::exception&) {  // A batch that this node's workers cannot share, say.
  }
}

}  // namespace ddprun::trainer
