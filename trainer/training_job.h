// One training run on this rank: its parts, the batches they work on, and its checkpoints. It is
// put together by make_training_job().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/batch_plan.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/checkpoint_part.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/snapshot_memory.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/dataset.h"
#include "trainer/device/device.h"
#include "trainer/device/device_watch.h"
#include "trainer/device/resident_batches.h"
#include "trainer/models/image_classifier.h"
#include "trainer/optimizer/model_average.h"
#include "trainer/optimizer/precision.h"
#include "trainer/optimizer/sgd.h"
#include "trainer/options/own_kernels.h"
#include "trainer/options/train_options.h"
#include "trainer/profile/profiler.h"
#include "trainer/report/reporter.h"
#include "trainer/shards/shard_balance.h"
#include "trainer/shards/shard_tree.h"
#include "trainer/stopping/stop_vote.h"
#include "worker/membership.h"
#include "worker/progress_note.h"

namespace ddprun::worker {
template <class ModuleType>
class DistributedDataParallel;
class PowerSgd;
}  // namespace ddprun::worker

namespace ddprun::trainer {

class ShardedBatch;

// As people count, from 1: the epoch that a run is in, or has just ended.
inline std::int64_t epoch_at_hand(const TrainingState& state) {
  return state.epoch + (state.samples_done > 0 ? 1 : 0);
}

// Members are declared in the order of their making, so that each is gone before what it uses.
struct TrainingJob {
  TrainingJob();
  ~TrainingJob();

  // Told what this thread does from now on, of an attempt's beginning too ("meet" the peers, take
  // or give "state"): for who watches the job, and for tests, which end a worker there.
  std::function<void(const TrainingJob& job, const std::string& phase)> on_phase;

  std::unique_ptr<DeviceWatch> device_watch;  // Of GPUs, and of the attempt at hand.
  TrainOptions options;
  std::unique_ptr<worker::Membership> members;  // Where it recovers in place.
  worker::WorkerEnv env;
  std::unique_ptr<Dataset> training_set;    // Null with --evaluate.
  std::unique_ptr<Dataset> validation_set;  // Null with --no-validation.
  BatchPlan plan;
  std::int64_t image_size = 0;
  RunIdentity identity;
  std::optional<CheckpointFolder> folder;  // Rank 0, with --checkpoint-dir.
  std::unique_ptr<Reporter> reporter;
  std::unique_ptr<Profiler> profiler;  // Null without --profile. The communicator tells it.
  DeviceAndPeers place;
  OwnKernels kernels;            // That the device computes with.
  std::optional<int> gpu_place;  // The local rank that this process had first.
  std::unique_ptr<ResidentSet> resident_training_set;  // With --resident-data, as the sets above.
  std::unique_ptr<ResidentSet> resident_validation_set;
  // Of JPEG files for samples of such a kind; with --device-jpeg, where nvJPEG is to be had.
  std::function<std::unique_ptr<BatchDecoder>(const SampleOptions&)> make_jpeg_decoder;
  std::optional<worker::Membership::Guard> guard;  // With `members`.
  std::unique_ptr<StopVote> stop;  // Null with --evaluate, which has nothing to keep.
  bool channels_last = false;
  std::shared_ptr<ImageClassifier> model;
  std::unique_ptr<Precision> precision;
  ShardShares shares;                           // With --shards: who has which now.
  std::optional<ShardBalance> balance;          // With --balance-shards, where there is a choice.
  std::unique_ptr<ShardedBatch> shards;         // With --shards, unless nothing is trained.
  std::shared_ptr<worker::PowerSgd> power_sgd;  // With --power-sgd and peers.
  std::unique_ptr<worker::DistributedDataParallel<ImageClassifier>> parallel;
  std::unique_ptr<Sgd> optimizer;
  std::unique_ptr<ModelAverage> average;  // With --ema.
  CheckpointParts checkpoint_parts;       // What is saved besides the model.
  TrainingState state;
  double validation_s = 0;     // That the last validation took; 0: none was in this process.
  BadImages bad_images;        // Met in this epoch's training, also by attempts before.
  bool holds_state = false;    // It is this run's, and may be given to other ranks.
  bool step_is_whole = false;  // wait_for_step() has returned since begin_step().
  std::optional<worker::ProgressNote> progress;  // For the launcher, which restarts by it.
  std::chrono::nanoseconds exposed_before{0};    // Of `parallel` and `shards` that were replaced.
  CheckpointName last_saved{-1, -1};
  double last_saved_best = -1;  // The best accuracy that this one tells; -1: not known.
  struct {
    CheckpointName from{-1, -1};
    std::string other_numbers;  // Than it was trained with (checkpoint.h); "" where not.
  } resumed;
  std::unique_ptr<SnapshotMemory> snapshots;  // One rank of each node, with --snapshot-every.
  std::optional<Safetensors> best;            // Copies of the best weights, to be saved next.
  std::unique_ptr<CheckpointWriter> writer;   // Where either is, unless nothing is trained.

  worker::Communicator& communicator() { return *place.communicator; }
  bool is_first_rank() const { return env.rank == 0; }

  // The training set, or what is evaluated: shape and classes are those of both.
  const Dataset& dataset() const { return training_set ? *training_set : *validation_set; }

  void tell(const char* begun) const {
    went_on(begun);
    if (on_phase) on_phase(*this, begun);
  }
  // This thread does not stand still: on a GPU that is what a device that hangs is known by.
  void went_on(const char* with) const {
    if (device_watch) device_watch->went_on(with, state.step);
  }
  void begin_step() {
    tell("data");
    step_is_whole = false;
    if (profiler) profiler->begin_step(state.step + 1);
  }
  // Names what this thread does from now on, for --profile.
  void phase(const char* name) {
    tell(name);
    if (profiler) profiler->phase(name);
  }
  void end_phase() {
    if (profiler) profiler->end_phase();
  }

  // Over how many a batch is normalised.
  int normalizing_workers() const { return options.sync_batch_norm ? env.world_size : 1; }

  // Which of plan.replicas this rank is: one, or its shards.
  ShardRange own_replicas() const;
  int replicas_least() const;  // That any rank is.

  // For how long this process has waited for communication in steps; on a GPU its stream, as far as
  // the device is past it.
  std::chrono::nanoseconds exposed_communication() const;

  // What is left of this rank's share of the epoch at hand: a batch is that of a step, of its
  // replicas one after the other, as many images each.
  std::unique_ptr<BatchSource> training_batches() const;
  // A replica's share of the validation set.
  std::unique_ptr<BatchSource> validation_batches(int replica) const;

  // Nothing that is kept is made of weights before this has returned: on a GPU the sums of a step
  // that a lost peer ended look like sums (Communicator::wait). Not collective; waits for the
  // device once a step. Throws CommunicatorError.
  void wait_for_step();

  // Rank 0 writes a checkpoint of this moment, unless it just did, and the best weights if
  // note_accuracy() found them. Returns when they are copied; written while training goes on. Makes
  // up for the write before where that has failed, with a warning. Throws CheckpointError where
  // writes have failed for too long, this one as well.
  void save_checkpoint();
  // The write before has failed, and it is time to make up for it. Does not wait.
  bool must_save_again();
  // Each node keeps a checkpoint of this moment in memory, unless a write is at hand: what rank 0
  // would save. Collective.
  void save_snapshot();
  // Notes the accuracy. If it is better than all so far, the weights that the model has now are
  // kept for the next save_checkpoint(), and it is true.
  bool note_accuracy(double prec1);
  // Reports what has been written since, without waiting.
  void report_written();
  // After a loss that is no number. Also ranks that keep none may call it.
  void drop_snapshots();
  // Waits for the write at hand, which may fail.
  void let_write_end() noexcept;
  bool best_file_has_gone();
  // After a loss that is no number: snapshots are dropped; and if it came from the newest
  // checkpoint's weights, that one is renamed, so that the next start does not meet the same. What
  // cannot be renamed is told of, and no error.
  void take_back_ruined(std::int64_t bad_step);
  // Waits until everything is on the disk. What could not be written is tried once more, of this
  // moment; throws CheckpointError where that fails, too.
  void finish_checkpoints();
};

// This rank's sample indices in an epoch, as torch.utils.data.DistributedSampler(shuffle=True,
// seed=seed) yields them after set_epoch(epoch).
std::vector<std::int64_t> sample_order(std::int64_t dataset_size, const worker::WorkerEnv& env,
                                       std::uint64_t seed, std::int64_t epoch);

}  // namespace ddprun::trainer
