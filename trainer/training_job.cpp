// Batches follow from where the run stands alone, so that a resumed run sees the same ones.
#include "trainer/training_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/consistency/verify_sync.h"
#include "trainer/device/byte_batches.h"
#include "trainer/open_dataset.h"
#include "trainer/shards/sharded_batch.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/distributed_sampler.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

LoaderOptions loader_options(const TrainingJob& job, const Dataset& dataset, bool train) {
  LoaderOptions loader{.batch_size = train ? job.plan.batch_size : job.plan.micro_batch_size,
                       .threads = job.options.workers,
                       .device = job.place.device,
                       .sample = sample_options(job.options, dataset, job.image_size, train)};
  loader.sample.epoch = job.state.epoch;
  loader.sample.channels_last = job.channels_last;
  return loader;
}

// From the device's memory where the set lies there; else from the loader, as what the job says.
std::unique_ptr<BatchSource> make_batches(const TrainingJob& job, const Dataset& dataset,
                                          const ResidentSet* resident,
                                          std::vector<std::int64_t> indices,
                                          LoaderOptions options) {
  if (job.make_jpeg_decoder) {
    options.make_decoder = [make = job.make_jpeg_decoder, sample = options.sample] {
      return make(sample);
    };
  }
  if (resident == nullptr && (job.options.device_normalize || job.options.device_jpeg)) {
    return std::make_unique<ByteBatches>(dataset, std::move(indices), options, job.place.device);
  }
  if (resident == nullptr) {
    return std::make_unique<BatchLoader>(dataset, std::move(indices), std::move(options));
  }
  return std::make_unique<ResidentBatches>(*resident, std::move(indices), options.batch_size,
                                           options.sample);
}

// The samples of one replica, as DistributedSampler has them.
std::vector<std::int64_t> sample_order(std::int64_t dataset_size, int replicas, int replica,
                                       std::uint64_t seed, std::int64_t epoch) {
  const worker::DistributedSampler sampler({.length = dataset_size,
                                            .replicas = replicas,
                                            .rank = replica,
                                            .seed = static_cast<std::int64_t>(seed)});
  return sampler.indices(epoch);
}

// Of each step the batch of one order after that of the other; all orders are as long.
std::vector<std::int64_t> step_by_step(const std::vector<std::vector<std::int64_t>>& orders,
                                       std::int64_t batch_size) {
  if (orders.size() == 1) return orders.front();
  std::vector<std::int64_t> all;
  const auto length = static_cast<std::int64_t>(orders.front().size());
  for (std::int64_t begin = 0; begin < length; begin += batch_size) {
    const std::int64_t end = std::min(begin + batch_size, length);
    for (const auto& order : orders) {
      all.insert(all.end(), order.begin() + begin, order.begin() + end);
    }
  }
  return all;
}

// Each worker has its own, of its own batches; a checkpoint has rank 0's.
void take_running_statistics(TrainingJob& job, Safetensors& contents) {
  if (job.env.world_size == 1) return;
  std::vector<torch::Tensor*> statistics;
  std::vector<torch::Tensor> flat;
  for (auto& [name, tensor] : contents.tensors) {
    if (!is_running_statistic(name)) continue;
    statistics.push_back(&tensor);
    flat.push_back(tensor.detach().flatten());
  }
  if (flat.empty()) return;
  torch::Tensor all = torch::cat(flat);
  worker::broadcast(job.communicator(), all, /*root=*/0);
  job.communicator().wait(worker::current_stream(job.place.device));
  std::int64_t begin = 0;
  for (torch::Tensor* tensor : statistics) {
    const std::int64_t count = tensor->numel();
    *tensor = all.narrow(0, begin, count).view(tensor->sizes());
    begin += count;
  }
}

}  // namespace

// Here, because the header does not know what DistributedDataParallel is: it includes a good part
// of worker/torch, of which all of trainer/ would have to be compiled again.
TrainingJob::TrainingJob() = default;
TrainingJob::~TrainingJob() = default;

std::vector<std::int64_t> sample_order(std::int64_t dataset_size, const worker::WorkerEnv& env,
                                       std::uint64_t seed, std::int64_t epoch) {
  return sample_order(dataset_size, env.world_size, env.rank, seed, epoch);
}

ShardRange TrainingJob::own_replicas() const {
  if (options.shards) return shares[static_cast<std::size_t>(env.rank)];
  return {env.rank, env.rank + 1};
}

int TrainingJob::replicas_least() const {
  int least = options.shards ? plan.replicas : 1;
  for (const ShardRange& share : shares) least = std::min(least, share.count());
  return least;
}

std::chrono::nanoseconds TrainingJob::exposed_communication() const {
  return exposed_before + parallel->exposed_communication() +
         (shards ? shards->exposed_communication() : std::chrono::nanoseconds{0});
}

std::unique_ptr<BatchSource> TrainingJob::training_batches() const {
  // Sample i of replica r is sample i * replicas + r of the epoch.
  const std::int64_t done = std::min(state.samples_done / plan.replicas, plan.samples_per_worker);
  const ShardRange own = own_replicas();
  std::vector<std::vector<std::int64_t>> orders;
  for (int replica = own.first; replica < own.end; ++replica) {
    orders.push_back(
        sample_order(training_set->size(), plan.replicas, replica, options.seed, state.epoch));
    orders.back().erase(orders.back().begin(), orders.back().begin() + done);
  }
  LoaderOptions loader = loader_options(*this, *training_set, /*train=*/true);
  loader.batch_size *= own.count();
  loader.part_size = plan.micro_batch_size;
  return make_batches(*this, *training_set, resident_training_set.get(),
                      step_by_step(orders, plan.batch_size), std::move(loader));
}

// Every image once: no padding, so replicas may have different numbers.
std::unique_ptr<BatchSource> TrainingJob::validation_batches(int replica) const {
  return make_batches(*this, *validation_set, resident_validation_set.get(),
                      worker::evaluation_indices(validation_set->size(), plan.replicas, replica),
                      loader_options(*this, *validation_set, /*train=*/false));
}

void TrainingJob::wait_for_step() {
  if (env.world_size == 1 || step_is_whole) return;
  communicator().wait(worker::current_stream(place.device));
  step_is_whole = true;
}

void TrainingJob::save_checkpoint() {
  if (!writer || !folder) {
    if (!options.checkpoint_dir.empty()) StopSignals::writer_may_wait();
    return;
  }
  wait_for_step();
  const StopSignals::DiskWait wait;
  const CheckpointName name{state.epoch, state.step};
  if (name == last_saved && !writer->settle()) last_saved = {-1, -1};  // It is not.
  std::vector<CheckpointFile> files;
  // Also of a step that has one from before its validation: whoever goes on from that would take
  // any accuracy for the best.
  if (name != last_saved || state.best_prec1 != last_saved_best) {
    files.push_back({name, make_checkpoint(identity, state, *model, checkpoint_parts)});
  }
  if (best) {
    files.push_back({{}, std::move(*best), /*is_copy=*/true});
    best.reset();
  }
  if (files.empty()) return;
  phase("checkpoint");
  reporter->status("saving ...");
  const SaveStall stall = writer->save(std::move(files));
  end_phase();
  last_saved = name;
  last_saved_best = state.best_prec1;
  if (const auto& failed = stall.failed_before) {
    reporter->warning(fmt::format("{}; trying again, with step {}", failed->reason, name.step));
    if (retry_after(*failed) == Retry::Never) writer->finish();  // Throws where this fails, too.
  }
  reporter->event(
      "checkpoint_copied",
      {{"step", state.step}, {"waited_s", stall.waited_s}, {"copied_s", stall.copied_s}});
}

bool TrainingJob::must_save_again() {
  const auto failed = writer ? writer->failed() : std::nullopt;
  if (!failed) return false;
  if (!folder) writer->finish();  // Throws it: there is no place that could be away for a while.
  return retry_after(*failed) != Retry::Later;
}

void TrainingJob::save_snapshot() {
  phase("snapshot");
  wait_for_step();
  Safetensors contents = make_checkpoint(identity, state, *model, checkpoint_parts);
  // Also on ranks that keep nothing: the others wait for them.
  if (!options.sync_batch_norm && !shards) take_running_statistics(*this, contents);
  const CheckpointName name{state.epoch, state.step};
  const bool saved = folder && name == last_saved;
  if (writer && snapshots && !saved && !snapshots->too_small()) {
    std::vector<CheckpointFile> files;
    files.push_back({name, std::move(contents), /*is_copy=*/false, /*memory_only=*/true});
    writer->save_if_idle(std::move(files));
  }
  end_phase();
  if (snapshots && snapshots->tells_too_small()) {
    reporter->warning(
        fmt::format("a checkpoint does not fit into the {} bytes that ddprun --restart-memory has "
                    "for each of two: none is kept in memory",
                    snapshots->bytes_max()));
  }
}

bool TrainingJob::note_accuracy(double prec1) {
  // 0: none that counts. As good as the best is enough where the file of that has gone.
  const bool better = prec1 > state.best_prec1 || state.best_prec1 == 0;
  const bool equal = prec1 == state.best_prec1;
  if (!better && !(equal && best_file_has_gone())) return false;
  state.best_prec1 = prec1;
  if (!writer || !folder) return true;
  // Copied now: the model may hold the average of --ema while it is validated, and its own weights
  // again when the checkpoint is saved.
  best = make_weights(identity, state, *model);
  for (auto& [name, tensor] : best->tensors) {
    tensor = tensor.detach().to(torch::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                /*copy=*/true);
  }
  return true;
}

// Not while it is being written.
bool TrainingJob::best_file_has_gone() {
  if (best || !writer || !folder || folder->has_best()) return false;
  const StopSignals::DiskWait wait;
  return writer->settle() && !folder->has_best();
}

void TrainingJob::take_back_ruined(std::int64_t bad_step) {
  drop_snapshots();
  // A loss that came later was computed with weights that a good loss has been computed from.
  if (!writer || !folder || last_saved.step != bad_step - 1) return;
  let_write_end();  // Which may have failed after the file was there.
  if (last_saved == resumed.from && !resumed.other_numbers.empty()) {
    reporter->warning(
        fmt::format("the checkpoint of step {} gives no finite loss {}: it stays as it is",
                    last_saved.step, resumed.other_numbers));
    return;
  }
  try {
    const auto aside = folder->take_back(last_saved);
    const auto left = folder->list();
    reporter->warning(
        fmt::format("the checkpoint of step {} gives no finite loss: renamed to {}; {}",
                    last_saved.step, aside.string(),
                    left.empty() ? "no other one is left"
                                 : "the next start goes on from " + left.back().file_name()));
  } catch (const std::exception& error) {  // Nothing may hide why training ended.
    reporter->warning(
        fmt::format("the checkpoint of step {} gives no finite loss: could not put {} in order: {}",
                    last_saved.step, options.checkpoint_dir.string(), error.what()));
  }
}

// Any of them may be of weights that give no finite loss, whatever the disk did.
void TrainingJob::drop_snapshots() {
  if (!writer || !snapshots) return;
  let_write_end();
  snapshots->mark_ruined();
}

void TrainingJob::let_write_end() noexcept {
  try {
    writer->finish();
  } catch (const std::exception&) {  // It is told of where a checkpoint is missed.
  }
}

void TrainingJob::report_written() {
  if (!writer) return;
  for (const std::string& warning : writer->take_warnings()) reporter->warning(warning);
  for (const FinishedWrite& write : writer->take_finished()) {
    if (!write.name) continue;
    reporter->event(
        "checkpoint",
        {{"step", write.name->step}, {"path", write.path.string()}, {"seconds", write.seconds}});
    reporter->written(write.name->step);
  }
}

void TrainingJob::finish_checkpoints() {
  if (!writer) return;
  reporter->status("saving ...");
  const StopSignals::DiskWait wait;
  if (!writer->settle()) save_checkpoint();
  writer->finish();
  report_written();
}

}  // namespace ddprun::trainer
