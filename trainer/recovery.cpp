// The order in which an attempt is taken apart, which is that of make_training_job.cpp backwards.
#include "trainer/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iostream>
#include <vector>

#include "trainer/checkpoint/folder_claim.h"
#include "trainer/consistency/verify_sync.h"
#include "trainer/make_training_job.h"
#include "trainer/resume.h"
#include "trainer/ruined_state.h"
#include "trainer/shards/sharded_batch.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

// It may be torn between two states, or have been drawn and then half overwritten.
void drop_state(TrainingJob& job) {
  job.checkpoint_parts.clear();
  job.average.reset();
  job.optimizer.reset();
  job.precision.reset();
  job.model.reset();
  job.state = {};
  job.bad_images.clear();
}

// What tells people otherwise is gone with the attempt.
void warn(const TrainingJob& job, const std::string& text) {
  std::cerr << fmt::format("train: warning: rank {}: {}", job.env.rank, text) << std::endl;
}

void give_up_ruined(TrainingJob& job) {
  job.holds_state = false;
  warn(job, fmt::format("the weights after step {} are infinite or no numbers, and are given to "
                        "nobody: the job goes on from its last checkpoint",
                        job.state.step));
  drop_state(job);
}

// Of those that are told to end at one time the first saves. Who takes longer counts as dead.
constexpr std::chrono::milliseconds others_limit{20'000};
constexpr std::chrono::milliseconds least_wait{200};

// -1: there is none. Where nodes have folders of their own, those of another run may lie in this
// one, and must not be replaced: ForeignCheckpointError.
std::int64_t newest_step(CheckpointFolder& folder, const TrainingJob& job) {
  const auto check = job.options.resume_anyway ? IdentityCheck::Anyway : IdentityCheck::Strict;
  auto names = folder.list();
  for (; !names.empty(); names.pop_back()) {
    try {
      check_identity(folder.read(names.back()), folder.path_of(names.back()).string(), job.identity,
                     check);
      return names.back().step;
    } catch (const CheckpointError&) {
      throw;
    } catch (const SafetensorsAccessError&) {  // It may be sound.
      return names.back().step;
    } catch (const SafetensorsError&) {  // As where one is gone on from.
      folder.set_aside(names.back());
    }
  }
  return -1;
}

// False: there is nothing to save.
bool save_in_folder(TrainingJob& job) {
  if (!is_finite(*job.model)) {
    give_up_ruined(job);
    return false;
  }
  const auto since = std::chrono::steady_clock::now();
  const FolderClaim claim(job.options.checkpoint_dir, others_limit);
  // Behind those that have found the folder in the hands of a job that goes on: all of a node end
  // within its grace.
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - since);
  CheckpointFolder folder(
      job.options.checkpoint_dir, static_cast<std::size_t>(job.options.keep_checkpoints),
      CheckpointFolder::Access::Save, std::max(others_limit - waited, least_wait));
  if (newest_step(folder, job) >= job.state.step) return false;
  job.state.best_prec1 = written_best(folder, job.identity, job.state.best_prec1,
                                      [&job](const std::string& text) { warn(job, text); });
  folder.save({job.state.epoch, job.state.step},
              make_checkpoint(job.identity, job.state, *job.model, job.checkpoint_parts));
  return true;
}

worker::StatePosition held_position(const TrainingJob& job) {
  if (!job.holds_state) return {};
  return {job.state.step, job.state.epoch};
}

std::vector<torch::Tensor> model_tensors(const TrainingJob& job) {
  std::vector<torch::Tensor> tensors = job.model->parameters();
  for (const torch::Tensor& buffer : job.model->buffers()) tensors.push_back(buffer);
  return tensors;
}

}  // namespace

void leave_attempt(TrainingJob& job) {
  // Rank 0's, which may be another one's in the next attempt: the folder is locked until then.
  job.writer.reset();
  job.best.reset();
  job.snapshots.reset();
  job.last_saved = {-1, -1};
  job.last_saved_best = -1;
  job.progress.reset();
  job.stop.reset();
  unwrap_model(job);
  job.balance.reset();
  job.exposed_before = {};
  if (job.model) {
    job.model->train();  // It may have been in a validation.
    job.model->on_block({});
  }
  job.guard.reset();
  job.place.communicator.reset();
  job.profiler.reset();
  job.reporter.reset();
  job.folder.reset();
  if (!job.holds_state) drop_state(job);
}

// A pass over the weights of a ResNet-50 takes longer than all else here; and the wait for a rank
// has nothing to do.
bool next_rank(TrainingJob& job, const worker::Membership::GiveUp& give_up) {
  auto sound = job.holds_state ? std::async(std::launch::async,
                                            [&model = *job.model] { return is_finite(model); })
                               : std::future<bool>();
  if (!job.members->next_rank(give_up)) return false;
  // A loss that would have said so may not have come any more.
  if (sound.valid() && !sound.get()) give_up_ruined(job);
  return true;
}

bool could_save_alone(const TrainingJob& job) {
  return job.holds_state && !job.options.checkpoint_dir.empty() && !job.options.evaluate;
}

void save_alone(TrainingJob& job, StopReason reason) noexcept {
  const std::int64_t step = job.state.step;
  try {
    leave_attempt(job);
    if (!save_in_folder(job)) return;
    std::cout << stop_text({reason, step, job.state.epoch, job.options.checkpoint_dir,
                            job.options.resume})
              << std::endl;
  } catch (const std::exception& error) {
    warn(job, fmt::format("told to stop, and step {} could not be saved: {}", step, error.what()));
  }
}

worker::StateLead find_state(TrainingJob& job) {
  if (!job.options.recovers_in_place()) return {};
  return worker::find_lead(job.communicator(), held_position(job));
}

void share_held_state(TrainingJob& job, const worker::StateLead& lead) {
  if (lead.complete) return;
  const bool has_it = job.env.rank == lead.root || lead.leads(held_position(job));
  const TrainingState state = share_position(job, lead.root);
  const std::vector<torch::Tensor> own = model_tensors(job);
  std::vector<torch::Tensor> come = own;
  if (job.env.rank != lead.root) {
    for (torch::Tensor& tensor : come) tensor = torch::empty_like(tensor.detach());
  }
  worker::TensorBroadcast(job.communicator()).run(come, lead.root);
  std::vector<PartState> parts;
  if (state.step > 0) {
    parts = share_states(job.checkpoint_parts, job.communicator(), job.place.device, lead.root);
  }
  if (!has_it) {
    job.holds_state = false;  // It is torn, until the last of it is there.
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < own.size(); ++i) torch::Tensor(own[i]).copy_(come[i]);
    if (state.step > 0) restore_parts(job.checkpoint_parts, parts);
    job.state = state;
  }
  job.holds_state = true;
}

void verify_shared(TrainingJob& job, const worker::StateLead& lead) {
  verify_sync(job.communicator(),
              tensors_to_compare(*job.model, *job.optimizer, job.average.get(),
                                 /*running_statistics=*/true),
              job.place.device, job.state.step);
  job.reporter->line(fmt::format(
      "attempt {} goes on in place from step {}: all {} workers hold the state of rank {}",
      job.env.restart_count, job.state.step, job.env.world_size, lead.root));
}

}  // namespace ddprun::trainer
