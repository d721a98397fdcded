// See evaluate.h.
#include "trainer/evaluate.h"

#include "trainer/bad_images.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {

ValidationReport evaluate(TrainingJob& job) {
  Stopwatch watch;
  job.parallel->synchronize_buffers();
  job.model->eval();
  std::int64_t left_out = 0;
  torch::Tensor counts = torch::zeros({3}, torch::dtype(torch::kFloat64).device(job.place.device));
  {
    const torch::InferenceMode inference;
    const auto batches = job.validation_batches();
    while (const auto batch = batches->next()) {
      const torch::Tensor logits = job.model->forward(batch->images.to(job.place.device));
      const torch::Tensor labels = batch->labels.to(job.place.device);
      counts += batch_counts(logits, labels, torch::cross_entropy_loss(logits, labels));
    }
    left_out = report_bad_images(job, batches->skipped(), "validation");
  }
  job.model->train();
  worker::all_reduce(job.communicator(), counts, worker::ReduceOp::Sum);

  counts = counts.to(torch::kCPU);
  const double* sums = counts.data_ptr<double>();
  const std::int64_t counted = job.validation_set->size() - left_out;
  if (counted == 0) throw DataError("no image of the validation set can be read");
  const auto images = static_cast<double>(counted);
  return {.epoch = job.state.epoch,
          .step = job.state.step,
          .images = counted,
          .loss = sums[0] / images,
          .prec1 = 100 * sums[1] / images,
          .prec5 = 100 * sums[2] / images,
          .best_prec1 = std::max(job.state.best_prec1, 100 * sums[1] / images),
          .seconds = watch.lap()};
}

}  // namespace ddprun::trainer
