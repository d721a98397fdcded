// See train_loop.h.
#include "trainer/train_loop.h"

#include <fmt/format.h>

#include <cmath>

#include "trainer/evaluate.h"
#include "trainer/step_meters.h"
#include "trainer/training_step.h"

namespace ddprun::trainer {
namespace {

void check_loss(const TrainingJob& job, double loss) {
  if (std::isfinite(loss)) return;
  throw TrainingError(fmt::format(
      "rank {}: the loss is {} at step {} (epoch {}): lower --lr, or add --warmup-steps",
      job.env.rank, loss, job.state.step, job.state.epoch));
}

struct Totals {
  std::int64_t images = 0;  // Over all workers.
  double seconds = 0;       // In training steps; without validation and checkpoints.
};

// What is due after a step; the same on every rank.
void report_and_save(TrainingJob& job, StepMeters& meters, const torch::Tensor& loss, double rate) {
  const bool print = job.state.step % job.options.print_freq == 0;
  const bool save =
      job.options.checkpoint_every > 0 && job.state.step % job.options.checkpoint_every == 0;
  if (print || save) check_loss(job, loss.item<double>());  // Waits for a GPU: not on every step.
  if (print || job.reporter->wants_progress()) {
    const StepReport report = meters.report(job.state, rate);
    job.reporter->progress(report);
    if (print) job.reporter->step(report);
  }
  if (print) meters.start_window();
  if (save) job.save_checkpoint();
  if (print || save) meters.restart_clock();
}

// Trains to the end of the epoch or of the run.
void train_epoch(TrainingJob& job, Totals& totals) {
  StepMeters meters(job.plan, job.place.device);
  const auto batches = job.training_batches();
  TrainingStep step(job);
  torch::Tensor loss;
  while (job.state.step < job.plan.total_steps) {
    const auto batch = batches->next();
    if (!batch) break;
    const torch::Tensor images = batch->images.to(job.place.device);  // (N, C, H, W)
    const torch::Tensor labels = batch->labels.to(job.place.device);  // (N)
    meters.data_ready();

    const double rate = learning_rate_at(job.options.learning_rate, job.state.step, job.state.epoch,
                                         job.plan.total_steps);
    const StepOutput output = step.run(images, labels, rate);
    loss = output.loss;

    job.state.step += 1;
    job.state.samples_done += images.size(0) * job.env.world_size;
    meters.step_done(output.logits, labels, loss);
    report_and_save(job, meters, loss, rate);
  }
  if (loss.defined()) check_loss(job, loss.item<double>());
  totals.seconds += meters.seconds();
  totals.images += meters.images();
}

void report_end(TrainingJob& job, const Totals& totals, double seconds) {
  const double rate = totals.seconds > 0 ? static_cast<double>(totals.images) / totals.seconds : 0;
  job.reporter->line(fmt::format(
      "Done: {} steps{}; trained on {} images in {:.1f} s ({:.1f} images/s), {:.1f} s in all",
      job.state.step,
      job.validation_set ? fmt::format(", best Prec@1 {:.3f}", job.state.best_prec1) : "",
      totals.images, totals.seconds, rate, seconds));
  job.reporter->event("end", {{"step", job.state.step},
                              {"best_prec1", job.state.best_prec1},
                              {"seconds", seconds},
                              {"train_s", totals.seconds},
                              {"images_per_s", rate}});
}

}  // namespace

void train(TrainingJob& job) {
  Stopwatch watch;
  Totals totals;
  bool validated = false;
  while (job.state.step < job.plan.total_steps) {
    train_epoch(job, totals);
    if (job.state.samples_done >= job.plan.samples_per_worker * job.env.world_size) {
      job.state.epoch += 1;
      job.state.samples_done = 0;
    }
    if (job.validation_set) {
      const ValidationReport report = evaluate(job);
      job.note_accuracy(report.prec1);
      job.reporter->validation(report);
      validated = true;
    }
    job.save_checkpoint();
  }
  if (!validated && job.validation_set) job.reporter->validation(evaluate(job));
  report_end(job, totals, watch.lap());
}

}  // namespace ddprun::trainer
