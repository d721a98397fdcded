// See training_job.h.
#include "trainer/training_job.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "trainer/models/model_zoo.h"
#include "trainer/open_dataset.h"
#include "trainer/parameter_kinds.h"
#include "trainer/recipe_parts.h"
#include "trainer/replicated_classifier.h"
#include "trainer/resume.h"
#include "worker/torch/distributed_sampler.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {
namespace {

// How wide the terminal is that shows this process's stdout; 0: none does, or one of unknown width
// as mpirun's pseudo-terminals, whose output may end in a file.
std::size_t terminal_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    return size.ws_col;
  }
  // Of several workers stdout is a pipe, which ddprun shows on its terminal.
  const char* columns = std::getenv("DDPRUN_TERMINAL_COLUMNS");
  return columns == nullptr ? 0 : static_cast<std::size_t>(std::max(0, std::atoi(columns)));
}

std::unique_ptr<Reporter> make_reporter(const TrainingJob& job) {
  Reporter::Options options{.enabled = job.is_first_rank(),
                            .metrics = metrics_path(job.options.metrics, job.env.rank),
                            .tensorboard = job.options.tensorboard};
  if (const std::size_t columns = terminal_columns(); columns > 0) {
    options.terminal = true;
    options.columns = columns;
  }
  return std::make_unique<Reporter>(std::cout, options);
}

// The device, and the communicator so that the profiler sees what goes through it.
void open_place(TrainingJob& job) {
  job.place = open_device(job.options, job.env);
  if (job.options.profile.empty() || job.options.evaluate) return;
  job.profiler =
      std::make_unique<Profiler>(Profiler::Options{.folder = job.options.profile,
                                                   .window = job.options.profile_steps,
                                                   .operations = job.options.profile_operations,
                                                   .device = job.place.device},
                                 job.env, *job.reporter);
  job.place.communicator = worker::observe(std::move(job.place.communicator), *job.profiler);
}

void open_data(TrainingJob& job) {
  job.training_set = open_dataset(job.options, /*train=*/true);
  if (job.options.validation) job.validation_set = open_dataset(job.options, /*train=*/false);
  job.image_size = image_size_of(job.options, *job.training_set);
  // So that options which do not fit the data are refused before anything else is begun.
  sample_options(job.options, *job.training_set, job.image_size, /*train=*/false);
  job.plan = plan_batches(job.options, job.training_set->size(), job.env.world_size);
  job.options.learning_rate =
      resolve_learning_rate(job.options.learning_rate, job.plan.steps_per_epoch,
                            job.plan.global_batch_size, job.env.world_size);
}

RunIdentity identity_of(const TrainingJob& job) {
  std::string model = job.options.model;
  if (has_stem_choice(model)) {
    model += choose_stem(job.options.stem, job.image_size) == Stem::Small ? ", small stem"
                                                                          : ", ImageNet stem";
  }
  return {.model = model,
          .dataset = name_of(job.options.dataset),
          .image = fmt::format("{}x{}x{}", job.training_set->shape().channels, job.image_size,
                               job.image_size),
          .classes = job.training_set->classes(),
          .seed = job.options.seed};
}

std::shared_ptr<ImageClassifier> new_model(const TrainingJob& job) {
  return make_model({.name = job.options.model,
                     .stem = job.options.stem,
                     .input_channels = job.training_set->shape().channels,
                     .image_size = job.image_size,
                     .classes = job.training_set->classes(),
                     .zero_init_residual = job.options.zero_init_residual});
}

// On the device and in its memory layout before the optimizer and the gradient buckets see it.
void make_job_model(TrainingJob& job) {
  torch::manual_seed(job.options.seed);
  job.model = new_model(job);
  if (!job.options.evaluate) {
    check_last_batch(job.plan, *job.model, job.image_size,
                     job.options.sync_batch_norm ? job.env.world_size : 1);
    check_parts(job.plan, job.place.replicas.size(), *job.model, job.image_size);
  }
  job.model->to(job.place.device);
  job.channels_last =
      job.options.layout == LayoutOption::ChannelsLast ||
      (job.options.layout == LayoutOption::Auto &&
       (job.place.device.is_cuda() || job.model->prefers_channels_last(job.image_size)));
  if (job.channels_last) {
    for (torch::Tensor& parameter : job.model->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
  }
}

// What runs forward: the model, or replicas of it.
std::shared_ptr<ImageClassifier> make_network(const TrainingJob& job) {
  if (job.place.replicas.size() == 1) return job.model;
  return std::make_shared<ReplicatedClassifier>(job.model, job.place.replicas,
                                                [&job] { return new_model(job); });
}

worker::DataParallelOptions parallel_options(TrainingJob& job) {
  worker::DataParallelOptions options;
  options.bfloat16_gradients = job.options.gradient_type == GradientType::BFloat16;
  if (!job.options.overlap) options.buckets = worker::BucketLimits::whole_step();
  const bool synchronized = job.options.sync_batch_norm && job.env.world_size > 1;
  const bool observed = job.profiler && job.place.device.is_cpu();
  if (synchronized || observed) {
    options.queue = worker::make_reduction_queue(job.communicator(), job.place.device);
  }
  if (observed) options.queue = job.profiler->observe_queue(options.queue);
  if (synchronized) {
    worker::synchronize_batch_norms(*job.model, {options.queue, job.env.rank, job.env.world_size});
  }
  return options;
}
void make_precision(TrainingJob& job) {
  job.precision = std::make_unique<Precision>(job.options.precision, job.place.device);
  if (job.precision->scaler() != nullptr) {
    job.checkpoint_parts.push_back(loss_scaler_part(*job.precision->scaler()));
  }
  const std::string warning = slow_precision_warning(job.options.precision, job.place.device);
  if (!warning.empty()) job.reporter->warning(warning);
}

Sgd make_optimizer(const TrainingJob& job) {
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& entry : job.model->named_parameters()) {
    parameters.emplace_back(entry.key(), entry.value());
  }
  return Sgd(std::move(parameters), sgd_options(job.options, *job.model));
}

void add_recipe_parts(TrainingJob& job) {
  job.checkpoint_parts.push_back(optimizer_kind_part(job.options.optimizer));
  if (!job.options.ema_decay) return;
  job.average = std::make_unique<ModelAverage>(*job.model, *job.options.ema_decay);
  job.checkpoint_parts.push_back(average_part(*job.average));
}

// Broadcasts rank 0's model to all.
void wrap_model(TrainingJob& job) {
  job.parallel = std::make_unique<worker::DistributedDataParallel<ImageClassifier>>(
      make_network(job), job.communicator(), parallel_options(job));
}

std::string batch_text(const TrainingJob& job) {
  const BatchPlan& plan = job.plan;
  return fmt::format("{} x {}{} = {}", job.env.world_size,
                     job.options.accumulate > 1 ? fmt::format("{} x ", job.options.accumulate) : "",
                     plan.micro_batch_size, plan.global_batch_size);
}

// What TensorBoard shows under "Text": the command line, and what it came to.
std::string describe_run(const TrainingJob& job) {
  std::ifstream file("/proc/self/cmdline");
  std::string command{std::istreambuf_iterator<char>(file), {}};
  std::replace(command.begin(), command.end(), '\0', ' ');
  return fmt::format("    {}\n\n{} on {} ({} images); workers: {}; batch of each: {}; {}", command,
                     job.identity.model, job.identity.dataset, job.training_set->size(),
                     job.env.world_size, job.plan.batch_size, job.place.device.str());
}

LoaderOptions loader_options(const TrainingJob& job, const Dataset& dataset, bool train) {
  LoaderOptions loader{.batch_size = train ? job.plan.batch_size : job.plan.micro_batch_size,
                       .threads = job.options.workers,
                       .pinned = job.place.device.is_cuda(),
                       .sample = sample_options(job.options, dataset, job.image_size, train)};
  loader.sample.epoch = job.state.epoch;
  loader.sample.channels_last = job.channels_last;
  return loader;
}

// A line for a data set: "MNIST train: 60000 images ...; 28x28 pixels".
std::string data_line(const TrainingJob& job, const Dataset& dataset, bool train) {
  return fmt::format(
      "{}; {}", dataset.description(),
      describe(sample_options(job.options, dataset, job.image_size, train).transform));
}

// The optimizer's state is made in the first step, and is about as large as the model.
void start_writer(TrainingJob& job) {
  if (!job.folder || job.options.evaluate) return;
  const Safetensors model = make_weights(job.identity, job.state, *job.model);
  const Safetensors all =
      make_checkpoint(job.identity, job.state, *job.model, job.checkpoint_parts);
  const std::size_t bytes =
      snapshot_bytes(all.tensors) + (job.state.step == 0 ? snapshot_bytes(model.tensors) : 0);
  job.writer = std::make_unique<CheckpointWriter>(*job.folder, bytes, job.place.device.is_cuda());
}

void announce(TrainingJob& job) {
  std::int64_t parameters = 0;
  for (const torch::Tensor& parameter : job.model->parameters()) parameters += parameter.numel();
  Reporter& reporter = *job.reporter;
  reporter.line(data_line(job, *job.training_set, /*train=*/true));
  if (job.validation_set) reporter.line(data_line(job, *job.validation_set, /*train=*/false));
  reporter.line(fmt::format("{} ({:.2f} M parameters) on {}, {}; batches of {}, {} steps an epoch",
                            job.identity.model, static_cast<double>(parameters) / 1e6,
                            job.place.device.str(), job.communicator().description(),
                            batch_text(job), job.plan.steps_per_epoch));
  reporter.begin(job.state.step, describe_run(job));
  reporter.event("start", {{"model", job.identity.model},
                           {"dataset", job.identity.dataset},
                           {"images", job.training_set->size()},
                           {"parameters", parameters},
                           {"world_size", job.env.world_size},
                           {"batch_size", job.plan.batch_size},
                           {"global_batch_size", job.plan.global_batch_size},
                           {"accumulate", job.options.accumulate},
                           {"base_lr", job.options.learning_rate.base},
                           {"device", job.place.device.str()},
                           {"precision", name_of(job.options.precision)},
                           {"replicas", job.place.replicas.size()},
                           {"total_steps", job.plan.total_steps},
                           {"resumed_from_step", job.state.step},
                           {"restart_count", job.env.restart_count}});
}

}  // namespace

std::vector<std::int64_t> sample_order(std::int64_t dataset_size, const worker::WorkerEnv& env,
                                       std::uint64_t seed, std::int64_t epoch) {
  const worker::DistributedSampler sampler({.length = dataset_size,
                                            .replicas = env.world_size,
                                            .rank = env.rank,
                                            .seed = static_cast<std::int64_t>(seed)});
  return sampler.indices(epoch);
}

std::unique_ptr<BatchLoader> TrainingJob::training_batches() const {
  std::vector<std::int64_t> order =
      sample_order(training_set->size(), env, options.seed, state.epoch);
  // Sample i of rank r is sample i * world_size + r of the epoch.
  const std::int64_t done = std::min(state.samples_done / env.world_size, plan.samples_per_worker);
  order.erase(order.begin(), order.begin() + done);
  return std::make_unique<BatchLoader>(*training_set, std::move(order),
                                       loader_options(*this, *training_set, /*train=*/true));
}

// Every image once: no padding, so ranks may have different numbers.
std::unique_ptr<BatchLoader> TrainingJob::validation_batches() const {
  return std::make_unique<BatchLoader>(
      *validation_set, worker::evaluation_indices(validation_set->size(), env.world_size, env.rank),
      loader_options(*this, *validation_set, /*train=*/false));
}

void TrainingJob::save_checkpoint() {
  if (!writer) return;
  const CheckpointName name{state.epoch, state.step};
  std::vector<CheckpointFile> files;
  if (name.epoch != last_saved.epoch || name.step != last_saved.step) {
    files.push_back({name, make_checkpoint(identity, state, *model, checkpoint_parts)});
  }
  if (best) files.push_back({{}, std::move(*best), /*is_copy=*/true});
  best.reset();
  if (files.empty()) return;
  phase("checkpoint");
  const SaveStall stall = writer->save(std::move(files));
  end_phase();
  last_saved = name;
  reporter->event(
      "checkpoint_copied",
      {{"step", state.step}, {"waited_s", stall.waited_s}, {"copied_s", stall.copied_s}});
}

void TrainingJob::note_accuracy(double prec1) {
  if (prec1 < state.best_prec1) return;
  state.best_prec1 = prec1;
  if (!writer) return;
  best = make_weights(identity, state, *model);
  for (auto& [name, tensor] : best->tensors) {
    tensor = tensor.detach().to(torch::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                /*copy=*/true);
  }
}

void TrainingJob::report_written() {
  if (!writer) return;
  for (const FinishedWrite& write : writer->take_finished()) {
    if (!write.name) continue;
    reporter->event(
        "checkpoint",
        {{"step", write.name->step}, {"path", write.path.string()}, {"seconds", write.seconds}});
  }
}

void TrainingJob::finish_checkpoints() {
  if (!writer) return;
  writer->finish();
  report_written();
}

std::unique_ptr<TrainingJob> make_training_job(const TrainOptions& options,
                                               const worker::WorkerEnv& env) {
  auto job = std::make_unique<TrainingJob>();
  job->options = options;
  job->env = env;
  open_data(*job);
  job->identity = identity_of(*job);
  // What can fail on this rank alone fails before the peers are met.
  if (!options.checkpoint_dir.empty() && job->is_first_rank()) {
    using Access = CheckpointFolder::Access;
    job->folder.emplace(options.checkpoint_dir, static_cast<std::size_t>(options.keep_checkpoints),
                        options.evaluate ? Access::ReadOnly : Access::Save);
  }
  job->reporter = make_reporter(*job);
  open_place(*job);
  make_job_model(*job);
  job->optimizer = std::make_unique<Sgd>(make_optimizer(*job));
  job->checkpoint_parts.push_back(optimizer_part(*job->optimizer));
  add_recipe_parts(*job);
  make_precision(*job);
  bring_to_start(*job);
  wrap_model(*job);
  share_state(*job);
  start_writer(*job);
  announce(*job);
  return job;
}

}  // namespace ddprun::trainer
