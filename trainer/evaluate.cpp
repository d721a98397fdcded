// Every image once over all ranks, whatever their number, so that accuracies can be compared.
#include "trainer/evaluate.h"

#include <cmath>

#include "trainer/bad_images.h"
#include "trainer/data/divide_up.h"
#include "trainer/shards/sharded_batch.h"
#include "worker/progress_page.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

// The beats of a validation (stop_agreement.h): as many on every rank, although the ranks' shares
// differ by an image or a shard, and a batch of which no image can be read does not come at all.
class ValidationBeats {
 public:
  explicit ValidationBeats(TrainingJob& job)
      : stop_(job.stop.get()),
        left_(job.replicas_least() * divide_up(job.validation_set->size() / job.plan.replicas,
                                               job.plan.micro_batch_size)) {}

  // This rank is through with `batches`, since the beginning.
  StopReason done(std::int64_t batches) {
    while (stop_ != nullptr && left_ > 0 && counted_ < batches) {
      left_ -= 1;
      counted_ += 1;
      if (const StopReason reason = stop_->beat(); reason != StopReason::None) return reason;
    }
    return StopReason::None;
  }

 private:
  StopVote* stop_;
  std::int64_t left_;
  std::int64_t counted_ = 0;
};

// Of all replicas that this rank is.
std::int64_t own_batches(const TrainingJob& job) {
  const ShardRange own = job.own_replicas();
  const std::int64_t replicas = job.plan.replicas;
  std::int64_t batches = 0;
  for (std::int64_t replica = own.first; replica < own.end; ++replica) {
    const std::int64_t images = divide_up(job.validation_set->size() - replica, replicas);
    batches += divide_up(images, job.plan.micro_batch_size);
  }
  return batches;
}

// "epoch 3/90"; "" where nothing is trained.
std::string epoch_of(const TrainingJob& job) {
  if (job.plan.total_steps == 0) return "";
  return epoch_text(epoch_at_hand(job.state), epochs_of(job.plan));
}

// The lines of a validation, of this rank's batches.
class ValidationLines {
 public:
  explicit ValidationLines(TrainingJob& job)
      : job_(job),
        epoch_(epoch_of(job)),
        batches_(own_batches(job)),
        counts_(torch::zeros({3}, torch::kFloat64)) {
    job_.reporter->status(epoch_ + (epoch_.empty() ? "" : "  ") + "validating ...");
  }

  // After a batch, the `number`th; `last` is as batch_counts() has it.
  void batch_done(const torch::Tensor& last, std::int64_t images, std::int64_t number) {
    time_.update(watch_.lap());
    job_.reporter->validating(epoch_, number, batches_);
    if (!job_.reporter->tells_step_lines()) return;
    images_ += images;
    counts_ = counts_.to(last.device()) + last;
    if (number != 1 && number % job_.options.print_freq != 0) return;
    const torch::Tensor one = last.to(torch::kCPU), all = counts_.to(torch::kCPU);
    const auto meter = [&](std::int64_t which, double scale) {
      return meter_of(scale * one[which].item<double>(), static_cast<double>(images),
                      scale * all[which].item<double>(), static_cast<double>(images_));
    };
    StepReport report;
    report.step_in_epoch = number;
    report.steps_per_epoch = batches_;
    report.time_s = time_;
    report.loss = meter(0, 1);
    report.prec1 = meter(1, 100);
    report.prec5 = meter(2, 100);
    job_.reporter->validation_batch(report);
  }

 private:
  TrainingJob& job_;
  std::string epoch_;
  std::int64_t batches_;
  Stopwatch watch_;
  Meter time_;
  std::int64_t images_ = 0;
  torch::Tensor counts_;
};

// Adds what this rank computes to `counts`, a row a replica, which is as batch_counts() has it;
// returns the images that cannot be read. Nothing when all ranks stop.
std::optional<BadImages> evaluate_share(TrainingJob& job, torch::Tensor& counts) {
  const torch::InferenceMode inference;
  const AutocastGuard autocast = job.precision->autocast();  // Weights are converted once.
  ValidationBeats beats(job);
  ValidationLines lines(job);
  BadImages bad;
  std::int64_t before = 0;  // Batches of the replicas before.
  for (int replica = job.own_replicas().first; replica < job.own_replicas().end; ++replica) {
    const auto batches = job.validation_batches(replica);
    while (const auto batch = batches->next()) {
      const torch::Tensor logits = job.parallel->module()
                                       ->forward(to_device(batch->images, job.place.device))
                                       .to(torch::kFloat32);
      const torch::Tensor labels = to_device(batch->labels, job.place.device);
      const torch::Tensor last =
          batch_counts(logits, labels, torch::cross_entropy_loss(logits, labels));
      counts[replica] += last;
      lines.batch_done(last, labels.size(0), before + batches->taken());
      // A launcher that looks for ranks that stand must not take a long validation for one.
      worker::ProgressPage::own().phase("validation");
      job.went_on("validation");
      if (beats.done(before + batches->taken()) != StopReason::None) return std::nullopt;
    }
    before += batches->taken();
    if (beats.done(before) != StopReason::None) return std::nullopt;
    note_bad_images(bad, batches->skipped());
  }
  return bad;
}

// What counts where accuracies are compared: of all images, those that could not be read taken for
// wrong. A folder that is away in the middle of a validation must not leave easy images for the
// best result of all.
double certain_prec1(const TrainingJob& job, double prec1, std::int64_t images) {
  return prec1 * (static_cast<double>(images) / static_cast<double>(job.validation_set->size()));
}

}  // namespace

std::optional<ValidationReport> evaluate(TrainingJob& job, bool again) {
  Stopwatch watch;
  job.phase("validation");
  // Running statistics are each rank's own until now; rank 0's count, as in PyTorch's DDP.
  if (!job.shards) job.parallel->synchronize_buffers();
  job.model->eval();
  // Made out here: a tensor of inference mode could not be added up outside of it.
  torch::Tensor counts =
      torch::zeros({job.plan.replicas, 3}, torch::dtype(torch::kFloat64).device(job.place.device));
  if (job.stop) job.stop->now(BeatKind::Validation);
  const auto bad = evaluate_share(job, counts);
  if (job.stop) job.stop->now(BeatKind::Step);
  job.model->train();
  if (!bad) {
    job.end_phase();
    return std::nullopt;
  }
  const std::int64_t left_out = report_bad_images(job, *bad, "validation", /*tell=*/!again);
  // Each row comes from one rank alone, so the sum has the same bits whoever has which rows.
  worker::all_reduce(job.communicator(), counts, worker::ReduceOp::Sum);

  counts = worker::result_on_host(job.communicator(), counts).sum(0);
  job.end_phase();
  const double* sums = counts.data_ptr<double>();
  const std::int64_t counted = job.validation_set->size() - left_out;
  if (counted == 0)
    throw DataError(
        "no image of the validation set can be read: the warnings name them; look at --data");
  const auto images = static_cast<double>(counted);
  return ValidationReport{.epoch = job.state.epoch,
                          .step = job.state.step,
                          .images = counted,
                          .loss = std::abs(sums[0]) / images,  // No "-nan"; losses are positive.
                          .prec1 = 100 * sums[1] / images,
                          .prec5 = 100 * sums[2] / images,
                          .seconds = watch.lap()};
}

std::optional<Validation> validate(TrainingJob& job, bool in_epoch) {
  Validation validation;
  // `counts`: by it the best weights are chosen.
  const auto tell = [&](ValidationReport& report, bool counts) {
    report.best_prec1 = job.state.best_prec1;
    if (counts) {
      const double certain = certain_prec1(job, report.prec1, report.images);
      report.best_prec1 = std::max(report.best_prec1, certain);
      // Outside of an epoch there is news where a run was stopped before this validation.
      const bool news = !job.options.evaluate && certain > job.state.best_prec1;
      if (in_epoch || news) validation.best = job.note_accuracy(certain);
    }
    job.reporter->validation(report, in_epoch);
    if (!std::isfinite(report.loss)) {
      job.reporter->warning(
          "the loss of the validation is no finite number, so its accuracy is by chance: the "
          "weights have diverged, or --precision has too small a range for them");
    }
  };
  const auto weights = evaluate(job);
  if (!weights) return std::nullopt;
  validation.weights = *weights;
  const bool has_average = job.average && job.average->started();
  tell(validation.weights, /*counts=*/!has_average);
  if (!has_average) return validation;
  const ModelAverage::Swap swap(*job.average);
  validation.averaged = evaluate(job, /*again=*/true);  // Its buffers become rank 0's, too.
  if (!validation.averaged) return std::nullopt;
  validation.averaged->averaged = true;
  tell(*validation.averaged, /*counts=*/true);
  return validation;
}

}  // namespace ddprun::trainer
