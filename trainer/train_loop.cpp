// The order of what happens around a step: every rank takes the same turns, or collectives hang.
#include "trainer/train_loop.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "trainer/bad_images.h"
#include "trainer/balance_shards.h"
#include "trainer/consistency/verify_sync.h"
#include "trainer/evaluate.h"
#include "trainer/gpu_memory.h"
#include "trainer/gradient_travel.h"
#include "trainer/optimizer/loss_guard.h"
#include "trainer/report/end_line.h"
#include "trainer/ruined_state.h"
#include "trainer/shards/sharded_batch.h"
#include "trainer/step_meters.h"
#include "trainer/training_step.h"
#include "worker/progress_page.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::trainer {
namespace {

struct Totals {
  std::int64_t steps = 0;
  std::int64_t images = 0;  // Over all workers.
  double seconds = 0;       // In training steps; without validation and checkpoints.
};

// What a step leaves for what is due after it.
struct StepParts {
  StepMeters& meters;
  LossGuard& guard;
  double rate;
  torch::Tensor gradient_norm;  // Undefined without --clip-grad-norm.
};

void report_step(TrainingJob& job, StepParts& parts, bool print) {
  StepReport report = parts.meters.report(job.state, parts.rate);
  if (parts.gradient_norm.defined()) report.gradient_norm = parts.gradient_norm.item<double>();
  if (job.reporter->progress_due()) job.reporter->progress(report);
  if (!print) return;
  report.memory = memory_use();
  report.gpu_memory = device_memory(job.place.device);
  job.reporter->step(report);
}

// For who watches the job. The loss is the one that is printed: with --shards that of all, which
// each rank has on the host; else this rank's own, on a GPU of some steps before.
void tell_step(const TrainingJob& job, const StepOutput& output, const StepMeters& meters,
               const LossGuard& guard) {
  worker::ProgressPage& page = worker::ProgressPage::own();
  if (!page.is_there()) return;
  const StepTimes times = meters.last_times();
  const worker::StepFacts facts{.step = job.state.step,
                                .total_steps = job.plan.total_steps,
                                .epoch = job.state.epoch + 1,
                                .images = output.images / job.env.world_size,
                                .step_s = times.step_s,
                                .data_s = times.data_s,
                                .wait_s = times.wait_s,
                                .loss = job.shards ? output.loss.item<double>() : guard.last()};
  page.step_done(facts);
}

// Running statistics otherwise follow each worker's own batches.
bool shares_running_statistics(const TrainingJob& job) {
  return job.options.sync_batch_norm || job.shards;
}

// All that the job trains.
void verify_job_sync(TrainingJob& job) {
  if (job.env.world_size == 1) return;
  verify_sync(job.communicator(),
              tensors_to_compare(*job.model, *job.optimizer, job.average.get(),
                                 shares_running_statistics(job)),
              job.place.device, job.state.step);
}

// What verify_job_sync() compares, in words.
std::string describe_comparison(const TrainingJob& job) {
  std::string text = "weights";
  if (job.options.momentum > 0) text += ", momentum";
  if (job.average) text += ", averaged weights";
  if (!has_running_statistics(*job.model)) return text;
  return text + (shares_running_statistics(job)
                     ? ", running statistics"
                     : "; not running statistics, which are each worker's own without --sync-bn or "
                       "--shards");
}

// All that the device was asked for is done, and none of it was ended by a lost peer.
void finish_steps(TrainingJob& job, StepMeters& meters) {
  job.wait_for_step();  // First: there others are known to be waited for.
  meters.device_done([&job] { return job.exposed_communication(); });
}

// What is due after a step; the same on every rank.
void report_and_save(TrainingJob& job, StepParts parts) {
  const auto due = [&](std::int64_t steps) { return steps > 0 && job.state.step % steps == 0; };
  const bool print = due(job.options.print_freq);
  const bool all_save = due(job.options.checkpoint_every);  // Or rank 0 alone, again.
  const bool save = job.must_save_again() || all_save;
  const bool snapshot = due(job.options.snapshot_every);
  const bool verify = due(job.options.verify_sync.value_or(0));
  if (print || save || snapshot || verify) {  // Waits for a GPU: not on every step.
    parts.guard.finish();  // No checkpoint has the weights of a loss that is no number.
    finish_steps(job, parts.meters);
  }
  if (parts.meters.steps() == 1 && !print && job.reporter->tells_step_lines()) {
    job.reporter->first_step(parts.meters.report(job.state, parts.rate));
  }
  if (print || job.reporter->progress_due()) report_step(job, parts, print);
  if (print) parts.meters.start_window();
  if (verify) verify_job_sync(job);
  if (all_save || snapshot) share_errors(job);
  if (save) job.save_checkpoint();
  if (snapshot) job.save_snapshot();
  if (job.progress) job.progress->reached(job.state.step);
  job.report_written();
  // What was due is not the time of a step: figures of steps stay comparable.
  if (print || save || snapshot || verify) parts.meters.restart_clock();
}

// Where a person finds what was found out about a failure: with the checkpoints, else where the
// launcher keeps error files, which then stay, else in a new temporary folder: a fixed name in one
// that all users share could be somebody else's link.
std::filesystem::path folder_of_findings(const TrainingJob& job) {
  if (!job.options.checkpoint_dir.empty()) return job.options.checkpoint_dir;
  if (!job.env.error_file.empty()) return std::filesystem::path(job.env.error_file).parent_path();
  std::error_code error;
  std::string folder = (std::filesystem::temp_directory_path(error) / "train_XXXXXX").string();
  return error || ::mkdtemp(folder.data()) == nullptr ? "" : folder;
}

// What the epoch's line says of its training.
void note_training(EpochReport& epoch, StepMeters& meters, const TrainingJob& job, double rate) {
  if (meters.steps() == 0 || !job.reporter->tells_steps()) return;
  const StepReport last = meters.report(job.state, rate);
  epoch.train_loss = last.loss.average();
  epoch.learning_rate = rate;
  epoch.steps = meters.steps();  // The loss and the speed are of these.
  if (meters.seconds() > 0) {
    epoch.images_per_s = static_cast<double>(meters.images()) / meters.seconds();
  }
}

// The step; where the GPU's memory is not enough, an error that says what would fit.
StepOutput run_step(TrainingJob& job, TrainingStep& step, const torch::Tensor& images,
                    const torch::Tensor& labels, double rate) {
  std::string why;
  auto cause = OutOfMemory::Sure;
  try {
    return step.run(images, labels, rate);
  } catch (const c10::OutOfMemoryError& error) {
    why = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
    // What LibTorch makes of it where no convolution of cuDNN's has room for its work space.
    if (why.find("unable to find an engine") == std::string::npos) throw;
    cause = OutOfMemory::Likely;
  }
  // Out here nothing of the failed step holds memory any more, but for what it has recorded.
  step.forget_graph();
  throw TrainingError(explain_out_of_memory(job, images, labels, why, cause));
}

double rate_of_step(const TrainingJob& job) {
  return learning_rate_at(
      job.options.learning_rate,
      {.step = job.state.step,
       .epoch = job.state.epoch,
       .total_steps = job.plan.total_steps,
       .ahead = job.plan.steps_ahead,
       // Of a run that --steps ends the cosine is one of steps, however many images they have.
       .by_steps = job.options.steps == job.plan.total_steps});
}

// A whole epoch's training is not to be lost for what happens in its validation: an image that
// cannot be read, too little memory, a peer that is gone. Workers that recover in place keep it
// themselves.
void save_before_failing(TrainingJob& job, const std::exception& failure) {
  const bool of_a_peer = dynamic_cast<const worker::CommunicatorError*>(&failure) != nullptr;
  if (of_a_peer && job.members) return;
  try {
    job.save_checkpoint();
    job.finish_checkpoints();
  } catch (const worker::CommunicatorError&) {  // Of a peer again: nothing more to tell.
  } catch (const std::exception& error) {       // Nothing may hide why training ended.
    job.reporter->warning(error.what());
  }
}

// Nothing at the end. Where an image cannot be read the step before it is whole, and rank 0 can
// save that alone. Not for another rank's image: it hears of that in the step after.
std::optional<Batch> next_batch(TrainingJob& job, BatchSource& batches, LossGuard& guard) {
  try {
    return batches.next();
  } catch (const DataError& failure) {
    guard.finish();
    if (job.state.step > 0) save_before_failing(job, failure);
    throw;
  }
}

// Trains to the end of the epoch or of the run, or until the workers agree to stop.
StopReason train_epoch(TrainingJob& job, TrainingStep& step, Totals& totals, EpochReport& epoch) {
  StepMeters meters(job.plan, job.place.device, job.exposed_communication(), job.validation_s);
  auto batches = job.training_batches();
  LossGuard guard(
      job.env.rank, [&job] { return folder_of_findings(job); },
      [&job] { job.communicator().throw_if_aborted(); },
      [&job](std::int64_t sample) { return job.training_set->name(sample); },
      [&job] { job.went_on("report"); });
  StopReason stop = StopReason::None;
  double rate = 0;
  std::size_t noted = 0;  // Of the images that cannot be read.
  while (stop == StopReason::None && job.state.step < job.plan.total_steps) {
    job.begin_step();
    meters.data_due();
    const auto batch = next_batch(job, *batches, guard);
    noted = note_bad_images(job.bad_images, batches->skipped(), noted);
    if (!batch) break;
    const torch::Tensor images = to_device(batch->images, job.place.device);  // (N, C, H, W)
    const torch::Tensor labels = to_device(batch->labels, job.place.device);  // (N)
    meters.data_ready();

    rate = rate_of_step(job);
    const StepOutput output = run_step(job, step, images, labels, rate);

    job.state.step += 1;
    job.state.samples_done += output.images;
    job.stop->hold();  // Before anybody hears of the step: who then says stop means to keep it.
    job.phase("report");
    check_loss(job, guard, output, {job.state.step, job.state.epoch, batch->indices});
    meters.step_done(output.counts, output.counted, output.images);
    meters.communicated(job.exposed_communication());
    tell_step(job, output, meters, guard);
    const bool first = totals.steps == 0 && meters.steps() == 1;
    if (first && job.options.gpu_memory) tell_step_memory(job);
    report_and_save(job, {meters, guard, rate, output.gradient_norm});
    if (job.profiler && job.profiler->end_step()) meters.restart_clock();
    stop = job.stop->beat();
    if (stop == StopReason::None && job.stop->has_voted() && balance_shards(job, meters)) {
      batches = job.training_batches();
      noted = 0;
    }
  }
  guard.finish();  // Nothing is saved of a step whose loss is none.
  step.finish();
  finish_steps(job, meters);  // Before validation, in which a peer may be lost: this is kept then.
  note_training(epoch, meters, job, rate);
  report_bad_images(job, job.bad_images, "training");
  job.bad_images.clear();
  totals.steps += meters.steps();
  totals.seconds += meters.seconds();
  totals.images += meters.images();
  return stop;
}

// All images of the epoch at hand are done; what comes after them may not be.
bool is_epoch_done(const TrainingJob& job) {
  return job.state.samples_done >= job.plan.samples_per_worker * job.plan.replicas;
}

// The state as it was, if that is not kept, however the scope is left.
class StateOnTrial {
 public:
  explicit StateOnTrial(TrainingState& state) : state_(state), before_(state) {}
  ~StateOnTrial() {
    if (!kept_) take_back();
  }
  void take_back() { state_ = before_; }
  StateOnTrial(const StateOnTrial&) = delete;
  StateOnTrial& operator=(const StateOnTrial&) = delete;
  void keep() { kept_ = true; }

 private:
  TrainingState& state_;
  const TrainingState before_;
  bool kept_ = false;
};

// What is due between two epochs. An epoch counts as done only with its validation: a checkpoint
// of a stop before that says so, and the run that goes on validates first.
StopReason finish_epoch(TrainingJob& job, EpochReport& epoch) {
  StateOnTrial state(job.state);
  if (is_epoch_done(job)) {
    job.state.epoch += 1;
    job.state.samples_done = 0;
  }
  if (job.options.verify_sync == 0) verify_job_sync(job);
  if (job.validation_set) {
    std::optional<Validation> validation;
    Stopwatch watch;
    try {
      share_errors(job);  // Before, since a checkpoint comes where the validation fails, too.
      validation = validate(job, /*in_epoch=*/true);
    } catch (const std::exception& failure) {
      state.take_back();
      save_before_failing(job, failure);
      throw;
    }
    if (!validation) return job.stop->reason();
    job.validation_s = watch.lap();
    epoch.validation_loss = validation->weights.loss;
    epoch.top1 = validation->weights.prec1;
    if (validation->averaged) epoch.averaged_top1 = validation->averaged->prec1;
    epoch.best = validation->best;
  }
  state.keep();
  share_errors(job);
  job.save_checkpoint();
  if (job.writer) epoch.save = EpochReport::Save::Begun;
  return StopReason::None;
}

// Training and what is due after it, and the line that says what came of both.
StopReason run_epoch(TrainingJob& job, TrainingStep& step, Totals& totals) {
  Stopwatch watch;
  EpochReport epoch{.epoch = job.state.epoch + 1,
                    .epochs = epochs_of(job.plan),
                    .steps = job.plan.steps_per_epoch,
                    .steps_per_epoch = job.plan.steps_per_epoch};
  StopReason stop = train_epoch(job, step, totals, epoch);
  if (stop == StopReason::None) stop = finish_epoch(job, epoch);
  if (stop != StopReason::None) return stop;
  epoch.step = job.state.step;
  epoch.seconds = watch.lap();
  job.reporter->epoch(epoch);
  return stop;
}

// The step that the workers have agreed on is the last one of this process.
void stop_early(TrainingJob& job, StopReason reason) {
  share_errors(job);
  job.save_checkpoint();
  job.finish_checkpoints();
  if (job.profiler) job.profiler->finish();
  const std::string text = stop_text(
      {reason, job.state.step, job.state.epoch, job.options.checkpoint_dir, job.options.resume});
  if (job.options.checkpoint_dir.empty()) {
    job.reporter->warning(text);
  } else {
    job.reporter->line(text);
  }
  job.reporter->end("stopped", {{"step", job.state.step},
                                {"epoch", job.state.epoch},
                                {"reason", describe(reason)},
                                {"saved", !job.options.checkpoint_dir.empty()}});
}

// After the last step: nothing may have gone apart unnoticed.
void verify_at_end(TrainingJob& job) {
  if (!job.options.verify_sync || job.env.world_size == 1) return;
  verify_job_sync(job);
  job.reporter->line(fmt::format("All {} workers hold equal models after step {} ({})",
                                 job.env.world_size, job.state.step, describe_comparison(job)));
  job.reporter->event("verify_sync", {{"step", job.state.step},
                                      {"running_statistics", shares_running_statistics(job)}});
}

void report_end(TrainingJob& job, const Totals& totals, double seconds) {
  const double rate = totals.seconds > 0 ? static_cast<double>(totals.images) / totals.seconds : 0;
  const double step_s = totals.steps > 0 ? totals.seconds / static_cast<double>(totals.steps) : 0;
  RunEnd end{job.state.step, {}, totals.images, totals.steps, totals.seconds, seconds};
  if (job.validation_set) end.best_top1 = job.state.best_prec1;
  job.reporter->line(end_line(end));
  job.reporter->end("end", {{"step", job.state.step},
                            {"best_prec1", job.state.best_prec1},
                            {"seconds", seconds},
                            {"train_s", totals.seconds},
                            {"images_per_s", rate},
                            {"steps_per_worker", totals.steps},
                            {"step_s_avg", step_s}});
}

StopReason train_to_end(TrainingJob& job) {
  Stopwatch watch;
  Totals totals;
  TrainingStep step(job);
  bool validated = !job.validation_set;
  StopReason stop = StopReason::None;
  // A run that was stopped between its last step and the validation has that to do alone.
  while (stop == StopReason::None &&
         (job.state.step < job.plan.total_steps || is_epoch_done(job))) {
    stop = run_epoch(job, step, totals);
    validated = true;
  }
  if (!validated) {
    if (validate(job, /*in_epoch=*/false)) {
      job.save_checkpoint();  // Nothing, unless this validation was not done before.
    } else {
      stop = job.stop->reason();
    }
  }
  if (stop != StopReason::None) {
    stop_early(job, stop);
    return stop;
  }
  verify_at_end(job);
  job.stop->all_done();
  job.finish_checkpoints();
  if (job.profiler) job.profiler->finish();
  report_end(job, totals, watch.lap());
  return StopReason::None;
}

}  // namespace

StopReason train(TrainingJob& job) {
  try {
    return train_to_end(job);
  } catch (const BadLossError& error) {
    job.take_back_ruined(error.step());
    throw;
  } catch (const worker::CommunicatorError& error) {
    // Of another rank's loss, which it has told before it left: the checkpoint is the same.
    if (const auto step = bad_loss_step(error.what())) job.take_back_ruined(*step);
    throw;
  }
}

}  // namespace ddprun::trainer
