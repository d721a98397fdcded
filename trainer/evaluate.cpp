// Every image once over all ranks, whatever their number, so that accuracies can be compared.
#include "trainer/evaluate.h"

#include "trainer/report/bad_images.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {

ValidationReport evaluate(TrainingJob& job) {
  Stopwatch watch;
  job.phase("validation");
  // Running statistics are each rank's own until now; rank 0's count, as in PyTorch's DDP.
  job.parallel->synchronize_buffers();
  job.model->eval();
  std::int64_t left_out = 0;
  torch::Tensor counts = torch::zeros({3}, torch::dtype(torch::kFloat64).device(job.place.device));
  {
    const torch::InferenceMode inference;
    const AutocastGuard autocast = job.precision->autocast();  // Weights are converted once.
    const auto batches = job.validation_batches();
    while (const auto batch = batches->next()) {
      const torch::Tensor logits =
          job.parallel->module()->forward(batch->images.to(job.place.device)).to(torch::kFloat32);
      const torch::Tensor labels = batch->labels.to(job.place.device);
      counts += batch_counts(logits, labels, torch::cross_entropy_loss(logits, labels));
    }
    left_out = report_bad_images(job, batches->skipped(), "validation");
  }
  job.model->train();
  worker::all_reduce(job.communicator(), counts, worker::ReduceOp::Sum);

  counts = counts.to(torch::kCPU);
  job.end_phase();
  const double* sums = counts.data_ptr<double>();
  const std::int64_t counted = job.validation_set->size() - left_out;
  if (counted == 0)
    throw DataError(
        "no image of the validation set can be read: the warnings name them; look at --data");
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

void validate(TrainingJob& job, bool keep_best) {
  const auto conclude = [&](const ValidationReport& report) {
    if (keep_best) job.note_accuracy(report.prec1);
    job.reporter->validation(report);
  };
  ValidationReport report = evaluate(job);
  if (!job.average || !job.average->started()) return conclude(report);
  report.best_prec1 = job.state.best_prec1;
  job.reporter->validation(report);
  const ModelAverage::Swap swap(*job.average);
  report = evaluate(job);  // Its buffers become rank 0's, too.
  report.averaged = true;
  conclude(report);
}

}  // namespace ddprun::trainer
