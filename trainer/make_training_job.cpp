// The order in which a job is put together: what fails on one rank alone fails before peers wait.
#include "trainer/make_training_job.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/announce.h"
#include "trainer/checkpoint/power_sgd_part.h"
#include "trainer/checkpoint/recipe_state.h"
#include "trainer/consistency/check_settings.h"
#include "trainer/consistency/run_settings.h"
#include "trainer/device/device_jpeg_decoder.h"
#include "trainer/device/stream_beside.h"
#include "trainer/gpu_memory.h"
#include "trainer/gradient_travel.h"
#include "trainer/kernels/device/on_device.h"
#include "trainer/models/device_batch_norm.h"
#include "trainer/models/device_stem_pool.h"
#include "trainer/models/model_zoo.h"
#include "trainer/models/padded_conv.h"
#include "trainer/open_dataset.h"
#include "trainer/recovery.h"
#include "trainer/replicated_classifier.h"
#include "trainer/resume.h"
#include "trainer/sgd_options.h"
#include "trainer/shards/sharded_batch.h"
#include "trainer/watch_devices.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/sync_batch_norm.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

using namespace std::chrono_literals;

// How long the rank 0 of an earlier attempt may hold the checkpoints: a lost node's processes may
// still be dying when the next attempt begins, and one that was cut off stops them when it notices.
constexpr std::chrono::milliseconds last_attempts_limit = 20s;

// How wide the terminal is that shows this process's stdout; 0: none does, or one of unknown width
// as mpirun's pseudo-terminals, whose output may end in a file.
std::size_t terminal_columns() {
  const char* const term = std::getenv("TERM");
  if (term != nullptr && std::string_view(term) == "dumb") return 0;  // It cannot wipe a line.
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    return size.ws_col;
  }
  // Of several workers stdout is a pipe, which ddprun shows on its terminal.
  const char* columns = std::getenv("DDPRUN_TERMINAL_COLUMNS");
  return columns == nullptr ? 0 : static_cast<std::size_t>(std::max(0, std::atoi(columns)));
}

std::unique_ptr<Reporter> make_reporter(const TrainingJob& job) {
  Reporter::Options options{
      .enabled = job.is_first_rank(),
      .of_node = job.env.local_rank == 0,
      .rank_told = job.options.print_all_ranks && job.env.world_size > 1 ? job.env.rank : -1,
      .step_lines = job.options.step_lines || job.options.print_all_ranks,
      .metrics = metrics_path(job.options.metrics, job.env.rank),
      .tensorboard = events_folder(job.options.tensorboard, job.options.evaluate),
      .page_of = job.options.metrics};
  if (job.is_first_rank()) options.page = job.options.report;
  if (const std::size_t columns = terminal_columns(); columns > 0) {
    options.terminal = true;
    options.columns = terminal_columns;
  }
  return std::make_unique<Reporter>(std::cout, options);
}

// For places that the user has named. Only as they are opened: what cannot be written to them later
// is no matter of options.
constexpr const char* name_another = "; name a place where this user may write";

void open_profiler(TrainingJob& job) {
  try {
    job.profiler = std::make_unique<Profiler>(
        Profiler::Options{.folder = job.options.profile,
                          .window = job.options.profile_steps,
                          .operations = job.options.profile_operations,
                          .device = job.place.device,
                          .say = [&job](const auto& text) { job.reporter->line(text); },
                          .warn = [&job](const auto& text) { job.reporter->warning(text); }},
        job.env);
  } catch (const std::runtime_error& error) {
    throw UnusablePlaceError(std::string(error.what()) + name_another);
  }
}

UnusablePlaceError unusable_folder(const TrainingJob& job, const UnusableFolderError& error) {
  return UnusablePlaceError(error.what() + std::string(job.options.evaluate
                                                           ? "; name the folder of a training"
                                                           : name_another));
}

// Fails before the peers are met, as all does that can fail on this rank alone.
void open_named_files(TrainingJob& job) {
  const TrainOptions& options = job.options;
  if (!options.checkpoint_dir.empty() && job.is_first_rank()) {
    using Access = CheckpointFolder::Access;
    try {
      // After a restart the rank 0 of the attempt before may still have it. Who goes on from memory
      // need not wait for that.
      job.folder.emplace(options.checkpoint_dir, static_cast<std::size_t>(options.keep_checkpoints),
                         options.evaluate            ? Access::ReadOnly
                         : job.env.restart_count > 0 ? Access::SaveLater
                                                     : Access::Save);
    } catch (const UnusableFolderError& error) {
      throw unusable_folder(job, error);
    } catch (const CheckpointError& error) {
      // Another training holds it. A later attempt would take what that leaves for its own.
      if (options.resume == "auto" || job.env.restart_count > 0) throw;
      throw UsageError(error.what());
    }
    check_new_start(job);
  }
  try {
    job.reporter = make_reporter(job);
  } catch (const std::runtime_error& error) {
    throw UnusablePlaceError(std::string(error.what()) + name_another);
  }
}

// Of a restarted job whose workers have nothing in memory.
void take_folder(TrainingJob& job) {
  if (!job.folder) return;
  try {
    job.folder->take(last_attempts_limit);
  } catch (const UnusableFolderError& error) {
    throw unusable_folder(job, error);
  }
}

// The device with the kernels that it has, and the communicator so that the profiler sees what goes
// through it.
void open_place(TrainingJob& job) {
  const worker::CommunicatorOptions peers = communicator_options(job.options);
  // Model and data lie where the first attempt of this process put them, whatever its local rank
  // is.
  if (!job.gpu_place) job.gpu_place = job.env.local_rank;
  job.place = open_device(job.options, job.env, *job.gpu_place,
                          job.members ? job.members->options(peers) : peers);
  job.kernels =
      own_kernels(job.options, job.place.device.is_cuda() && cuda_module_has_step_kernels());
  use_device_norms(job.kernels.norm);
  use_device_pool(job.kernels.pool);
  if (job.members) job.guard = job.members->guard(job.communicator());
  job.device_watch = watch_devices(job);
  if (job.options.profile.empty() || job.options.evaluate) return;
  open_profiler(job);
  job.place.communicator = worker::trace(std::move(job.place.communicator), *job.profiler);
}

void open_sets(TrainingJob& job) {
  if (!job.options.evaluate) job.training_set = open_given(job.options, /*train=*/true);
  if (job.options.validation) job.validation_set = open_given(job.options, /*train=*/false);
  job.image_size = image_size_of(job.options, job.dataset());
  // So that options which do not fit the data are refused before anything else is begun.
  sample_options(job.options, job.dataset(), job.image_size, /*train=*/false);
}

// A job that has lost a node would end by each restart otherwise, for 256 images and three workers.
UnevenBatch uneven_batch(const TrainingJob& job) {
  return job.env.restart_count > 0 ? UnevenBatch::Rounded : UnevenBatch::Refused;
}

void plan_data(TrainingJob& job) {
  if (!job.training_set) {
    job.plan = plan_batch_sizes(job.options, job.env.world_size);
    return;
  }
  job.plan =
      plan_batches(job.options, job.training_set->size(), job.env.world_size, uneven_batch(job));
  job.options.learning_rate =
      resolve_learning_rate(job.options.learning_rate, job.plan.steps_per_epoch,
                            job.plan.global_batch_size, job.plan.replicas);
}

void tell_of_rounding(TrainingJob& job) {
  const std::int64_t asked = job.options.global_batch_size.value_or(job.plan.global_batch_size);
  if (job.plan.global_batch_size == asked || !job.is_first_rank()) return;
  job.reporter->warning(
      fmt::format("--global-batch-size {} cannot be shared evenly by the {} {} that there are now: "
                  "a step takes {} images",
                  asked, job.plan.replicas, job.options.shards ? "shards" : "workers",
                  job.plan.global_batch_size));
}

RunIdentity identity_of(const TrainingJob& job) {
  std::string model = job.options.model;
  if (has_stem_choice(model)) {
    model += choose_stem(job.options.stem, job.image_size) == Stem::Small ? ", small stem"
                                                                          : ", ImageNet stem";
  }
  const SampleOptions samples =
      sample_options(job.options, job.dataset(), job.image_size, /*train=*/false);
  return {.model = model,
          .dataset = name_of(job.options.dataset),
          .image = fmt::format("{}x{}x{}", job.dataset().shape().channels, job.image_size,
                               job.image_size),
          .classes = job.dataset().classes(),
          .seed = job.options.evaluate ? std::nullopt : std::optional(job.options.seed),
          .data = job.training_set ? identify(*job.training_set)
                                   : identify_classes(*job.validation_set),
          .normalization = samples.normalization,
          .precision = job.options.precision};
}

// With what a line for people leaves out.
std::string preparation_text(const TransformOptions& transform) {
  const AugmentOptions& augment = transform.augment;
  if (!augment.random_resized_crop) return describe(transform);
  return fmt::format("{}, --crop-ratio {:g},{:g}", describe(transform), augment.ratio_min,
                     augment.ratio_max);
}

RunFacts facts_of(const TrainingJob& job) {
  const auto samples_of = [&](const Dataset& dataset, bool train) {
    return sample_options(job.options, dataset, job.image_size, train);
  };
  const SampleOptions samples = samples_of(job.dataset(), /*train=*/job.training_set != nullptr);
  const Dataset* const validation = job.validation_set.get();
  return {.model = job.identity.model,
          .image = job.identity.image,
          .preparation = preparation_text(samples.transform),
          .validation_preparation =
              validation ? preparation_text(samples_of(*validation, /*train=*/false).transform)
                         : "none",
          .mean = samples.normalization.mean,
          .deviation = samples.normalization.deviation,
          .classes = job.dataset().classes(),
          .class_names = class_list(job.identity.data),
          .training_list = job.identity.data.list_checksum,
          .validation_list = validation ? identify(*validation).list_checksum : "",
          .training_images = job.training_set ? job.training_set->size() : 0,
          .validation_images = validation ? validation->size() : 0,
          .micro_batch_size = job.plan.micro_batch_size,
          .kernels = job.kernels};
}

// With --resident-data, in the memory of the device.
std::unique_ptr<ResidentSet> make_resident(const TrainingJob& job, const Dataset* dataset,
                                           bool train) {
  if (!job.options.resident_data || dataset == nullptr) return nullptr;
  const SampleOptions samples = sample_options(job.options, *dataset, job.image_size, train);
  const std::string reason =
      reason_against_residence(*dataset, samples.transform, resident_bytes_max);
  if (!reason.empty()) {
    throw UsageError(fmt::format(
        "--resident-data: the {} set cannot lie in the memory of the device: {}; leave it out",
        train ? "training" : "validation", reason));
  }
  return std::make_unique<ResidentSet>(*dataset, samples.normalization, job.place.device);
}

// Once for all attempts of this process.
void make_resident_sets(TrainingJob& job) {
  if (!job.resident_training_set) {
    job.resident_training_set = make_resident(job, job.training_set.get(), /*train=*/true);
  }
  if (!job.resident_validation_set) {
    job.resident_validation_set = make_resident(job, job.validation_set.get(), /*train=*/false);
  }
}

// Asks for a decoder here, so that one reason is told before the training and not one by each
// thread.
void open_jpeg_decoder(TrainingJob& job) {
  job.make_jpeg_decoder = nullptr;
  if (!job.options.device_jpeg) return;
  try {
    if (job.place.device.is_cpu()) throw NvJpegError("there is no GPU here");
    const OnDevice on(job.place.device);
    const NvJpeg tried;
    if (!tried.has_engines()) {
      job.reporter->node_warning(
          fmt::format("--device-jpeg: {}; its multiprocessors decode, which train besides",
                      tried.why_no_engines()));
    }
  } catch (const NvJpegError& error) {
    job.reporter->node_warning(
        fmt::format("--device-jpeg: {}; libjpeg decodes all images", error.what()));
    return;
  }
  const auto warn = [&job, told = std::make_shared<std::atomic_flag>()](const std::string& reason) {
    if (told->test_and_set()) return;
    job.reporter->node_warning(
        fmt::format("--device-jpeg: {}; libjpeg decodes in its place", reason));
  };
  const torch::Device device = job.place.device;
  // Each epoch makes new decoders, and LibTorch keeps memory for the stream that had it: with new
  // streams, too, all 32 of the device would hold some in the end.
  const c10::Stream steps = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  std::vector<c10::Stream> streams;
  for (int i = 0; i < std::max(1, job.options.workers); ++i)
    streams.push_back(stream_beside(steps));
  job.make_jpeg_decoder = [device, streams, next = std::make_shared<std::atomic_size_t>(0),
                           warn](const SampleOptions& sample) {
    return make_device_jpeg_decoder({.device = device,
                                     .side = sample.transform.side,
                                     .channels_last = sample.channels_last,
                                     .stream = streams[next->fetch_add(1) % streams.size()],
                                     .warn = warn});
  };
}

// With the weights that the seed gives.
void draw_model(TrainingJob& job) {
  allow_winograd(job.options.convolution == ConvolutionOption::Auto);
  torch::manual_seed(job.options.seed);
  job.model = new_model(job);
}

// On the device and in its memory layout before the optimizer and the gradient buckets see it.
void place_model(TrainingJob& job) {
  if (!job.options.evaluate) {
    check_last_batch(job.plan, *job.model, job.image_size, job.normalizing_workers());
    check_parts(job.plan, job.place.replicas.size(), *job.model, job.image_size,
                job.options.sync_batch_norm);
  }
  job.model->to(job.place.device);
  job.channels_last = job.options.layout != LayoutOption::Nchw;  // Faster everywhere.
  if (job.channels_last) lay_channels_last(*job.model);
}

worker::DataParallelOptions parallel_options(TrainingJob& job) {
  worker::DataParallelOptions options;
  options.communication_hook = make_communication_hook(job);
  const bool synchronized = job.options.sync_batch_norm && job.env.world_size > 1;
  // Statistics of several GPUs and buckets in the middle of backward have no common order.
  const bool late = synchronized && job.place.replicas.size() > 1;
  if (!job.options.overlap || late) options.buckets = worker::BucketLimits::whole_step();
  const bool observed = job.profiler && job.place.device.is_cpu();
  if (synchronized || observed) {
    options.queue = worker::reduction_queue_of(job.communicator(), job.place.device);
  }
  if (observed) options.queue = job.profiler->trace_queue(options.queue);
  if (job.shards) job.shards->prepare(options);
  return options;
}

// Anew in each attempt, whose ranks are others.
void divide_shards(TrainingJob& job) {
  job.shares.clear();
  if (!job.options.shards) return;
  const int shards = *job.options.shards;
  const int workers = job.env.world_size;
  job.shares = even_shares(shards, workers);
  if (!job.options.balance_shards || job.options.evaluate || workers == 1) return;
  const bool on_gpu = job.place.device.is_cuda();  // Where it was never tried.
  if (!on_gpu && workers < shards) {
    job.balance.emplace(shards, workers);
  } else {
    job.reporter->warning(fmt::format(
        "--balance-shards has no effect {}",
        on_gpu ? "on a GPU" : "while each worker has one shard: give more shards than workers"));
  }
}

// The one place that decides how a step comes to its gradients.
void make_shards(TrainingJob& job) {
  if (!job.options.shards || job.options.evaluate) return;
  // MPI adds in the order that it likes.
  const auto sums = job.place.device.is_cuda()                  ? ShardedBatch::Sums::AnyBits
                    : job.options.backend == BackendOption::Mpi ? ShardedBatch::Sums::InAnyOrder
                                                                : ShardedBatch::Sums::InTreeOrder;
  job.shards = std::make_unique<ShardedBatch>(*job.model, job.communicator(), job.shares, sums);
}

// What runs forward: the model, or replicas of it.
std::shared_ptr<ImageClassifier> make_network(const TrainingJob& job,
                                              const worker::BatchNormGroup& group) {
  const bool synchronized = job.options.sync_batch_norm;
  if (job.place.replicas.size() == 1) {
    if (synchronized) worker::synchronize_batch_norms(*job.model, group);
    return job.model;
  }
  auto replicated = std::make_shared<ReplicatedClassifier>(job.model, job.place.replicas,
                                                           [&job] { return new_model(job); });
  if (synchronized) replicated->synchronize_batch_norms(group);
  return replicated;
}

void make_precision(TrainingJob& job) {
  job.precision = std::make_unique<Precision>(job.options.precision, job.place.device);
  // What is done with gradients or weights besides would have to know on the host whether there was
  // an overflow.
  const bool nothing_else = !job.options.clip_grad_norm && !job.options.ema_decay;
  if (job.kernels.optimizer && nothing_else) job.precision->keep_scale_on_device();
  if (job.precision->scaler() != nullptr && !job.options.evaluate) {
    Precision* const precision = job.precision.get();
    job.checkpoint_parts.push_back(loss_scaler_part(
        *precision->scaler(), [precision] { precision->catch_up(); },
        [precision] { precision->restored(); }));
  }
  const std::string warning = slow_precision_warning(job.options.precision, job.place.device);
  if (!warning.empty()) job.reporter->warning(warning);
}

Sgd make_optimizer(const TrainingJob& job) {
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& entry : job.model->named_parameters()) {
    parameters.emplace_back(entry.key(), entry.value());
  }
  return Sgd(parameters, sgd_options(job.options, *job.model, job.kernels.optimizer));
}

// Also without --shards, which writes nothing: forgotten it would make every step another one. With
// --resume-anyway a number that is found is then told as what this run does not have.
void add_shards_part(TrainingJob& job) {
  const TrainOptions& options = job.options;
  if (!options.shards && options.resume_anyway) return;
  CheckpointPart part = shards_part(options.shards.value_or(0), options.resume_anyway);
  if (!options.shards) part.save = [] { return PartState{}; };
  job.checkpoint_parts.push_back(std::move(part));
}

// An evaluation takes the averaged weights alone: it goes on with no recipe.
void add_recipe_parts(TrainingJob& job) {
  if (!job.options.evaluate) {
    job.checkpoint_parts.push_back(optimizer_part(*job.optimizer));
    job.checkpoint_parts.push_back(optimizer_kind_part(job.options.optimizer));
    add_shards_part(job);
    job.power_sgd = make_power_sgd(job);
    if (job.power_sgd) {
      job.checkpoint_parts.push_back(power_sgd_part(*job.power_sgd, *job.model));
    }
  }
  if (!job.options.ema_decay) return;
  job.average = std::make_unique<ModelAverage>(*job.model, *job.options.ema_decay);
  job.checkpoint_parts.push_back(average_part(*job.average));
}

// What is trained, and outlives an attempt with a recovery in place.
void make_trained_parts(TrainingJob& job) {
  job.optimizer = std::make_unique<Sgd>(make_optimizer(job));
  add_recipe_parts(job);
  make_precision(job);
  if (!job.place.device.is_cpu()) return;
  for (const auto& [given, option] :
       {std::pair(job.kernels.norm, "--fused-norm"), std::pair(job.kernels.pool, "--fused-pool")}) {
    if (!given) continue;
    job.reporter->warning(fmt::format(
        "{} runs the kernels of a GPU as loops here, for tests: the CPU has faster ones of its own",
        option));
  }
}

// Broadcasts rank 0's model to all, unless they have the same already.
void wrap_model(TrainingJob& job, bool shared) {
  // A worker that is thrown out of its attempt is waited for until it has left its step.
  job.model->on_block([&peers = job.communicator()] { peers.throw_if_aborted(); });
  worker::DataParallelOptions options = parallel_options(job);
  options.init_sync = !shared;
  job.parallel = std::make_unique<worker::DistributedDataParallel<ImageClassifier>>(
      make_network(job, {options.queue, job.env.rank, job.env.world_size}), job.communicator(),
      options);
}

// Before a checkpoint is looked for.
void open_snapshots(TrainingJob& job) {
  if (job.options.snapshot_every == 0 || job.options.evaluate) return;
  if (!job.is_first_rank() && job.env.local_rank != 0) return;
  if (auto memory = worker::RestartMemory::of_launcher()) {
    if (!worker::RestartMemory::become_writer()) return;
    job.snapshots = std::make_unique<SnapshotMemory>(std::move(*memory));
  } else {
    job.reporter->node_warning(
        "--snapshot-every has no effect: no memory outlives this worker (ddprun --restart-memory "
        "SIZE gives some)");
  }
}

// The optimizer's state is made in the first step, and is about as large as the model; so is what
// PowerSGD leaves out.
void start_writer(TrainingJob& job) {
  if ((!job.folder && !job.snapshots) || job.options.evaluate) return;
  const Safetensors model = make_weights(job.identity, job.state, *job.model);
  const Safetensors all =
      make_checkpoint(job.identity, job.state, *job.model, job.checkpoint_parts);
  const std::size_t made_in_steps = job.state.step > 0 ? 0 : job.power_sgd ? 2 : 1;
  const std::size_t bytes =
      snapshot_bytes(all.tensors) + made_in_steps * snapshot_bytes(model.tensors);
  job.writer = std::make_unique<CheckpointWriter>(job.folder ? &*job.folder : nullptr, bytes,
                                                  job.place.device, job.snapshots.get());
}

}  // namespace

void unwrap_model(TrainingJob& job) {
  job.parallel.reset();
  job.shards.reset();  // BatchStatistics: the running ones are back.
  if (!job.model) return;
  // They lie in memory of the communicator.
  for (torch::Tensor& parameter : job.model->parameters()) parameter.mutable_grad().reset();
}

void wrap_model_anew(TrainingJob& job) {
  job.exposed_before = job.exposed_communication();
  unwrap_model(job);
  make_shards(job);
  wrap_model(job, /*shared=*/true);
}

std::shared_ptr<ImageClassifier> new_model(const TrainingJob& job) try {
  return make_model({.name = job.options.model,
                     .stem = job.options.stem,
                     .input_channels = job.dataset().shape().channels,
                     .image_size = job.image_size,
                     .classes = job.dataset().classes(),
                     .zero_init_residual = job.options.zero_init_residual});
} catch (const std::invalid_argument& error) {
  throw UsageError(fmt::format("--model: {}", error.what()));
}

void lay_channels_last(ImageClassifier& model) {
  for (torch::Tensor& parameter : model.parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
  }
}

void prepare_training_job(TrainingJob& job, const TrainOptions& options) {
  job.options = options;
  open_sets(job);
  job.identity = identity_of(job);
  draw_model(job);
}

void make_training_job(TrainingJob& job, const TrainOptions& options,
                       const worker::WorkerEnv& env) {
  const bool opened = job.training_set || job.validation_set;
  job.options = options;
  job.env = env;
  if (!opened) open_sets(job);
  plan_data(job);
  if (!opened) job.identity = identity_of(job);
  open_named_files(job);
  tell_of_rounding(job);
  job.tell("meet");
  open_place(job);
  check_settings(job.communicator(), job.place.device, settings_text(job.options, facts_of(job)));
  divide_shards(job);
  if (!job.model) draw_model(job);
  make_resident_sets(job);
  open_jpeg_decoder(job);
  place_model(job);
  if (!job.optimizer) make_trained_parts(job);
  open_snapshots(job);
  worker::StateLead lead = find_state(job);
  const bool in_place = lead.any;
  if (!in_place) {
    take_folder(job);
    lead = find_snapshot(job);
  }
  // Rank 0 alone reads a checkpoint, before the model is wrapped: wrapping gives the model to all.
  // The rest of the state follows, when every rank has the parts that take it.
  if (lead.any) {
    job.tell("state");
    share_held_state(job, lead);
  } else {
    bring_to_start(job);
  }
  make_shards(job);
  wrap_model(job, /*shared=*/lead.any);
  share_state(job, lead);
  if (in_place) verify_shared(job, lead);
  if (lead.any && !in_place) verify_snapshot(job, lead);
  // On a GPU what was broadcast may be nothing yet, or nothing at all (Communicator::wait).
  if (job.members) job.communicator().wait(worker::current_stream(job.place.device));
  job.holds_state = !options.evaluate;
  if (!options.evaluate) job.progress.emplace(job.env);
  start_writer(job);
  announce(job);
  if (job.options.gpu_memory) tell_lasting_memory(job);
}

}  // namespace ddprun::trainer
