// Writes checkpoints while training goes on: a step waits only for the copy in memory.
//
// One write is in flight at a time: a save that comes before the last one is on the disk waits for
// it, because leaving one out would lose what the user asked for, and a queue would need memory for
// several models. All calls from one thread.
//
// A write that fails costs nothing but itself: the folder may have been full, or its server away,
// for a moment. What is saved next is written all the same, and makes up for it; who asks failed()
// after each step knows at once that there is something to make up for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/snapshot_memory.h"
#include "trainer/checkpoint/tensor_snapshot.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// One file of a save: a checkpoint, or the best weights. With a SnapshotMemory, checkpoints also go
// there, and those that are for it alone go nowhere else.
struct CheckpointFile {
  std::optional<CheckpointName> name;  // Nothing: the best weights.
  Safetensors contents;
  bool is_copy = false;  // Nobody changes these tensors: they need not be copied.
  bool memory_only = false;
};

// Of the last write, and those before it that have failed one after the other.
struct FailedWrite {
  std::string reason;     // Names the file.
  bool hopeless = false;  // What was to be saved is at fault, and not the place.
  int in_a_row = 1;
  double failing_s = 0;  // Since the first of them.
  double ago_s = 0;      // Since the last.
};

struct SaveStall {
  double waited_s = 0;                       // For the write before.
  double copied_s = 0;                       // For the copy.
  std::optional<FailedWrite> failed_before;  // The write before, which this one makes up for.
};

enum class Retry { Now, Later, Never };

// The first time at once, then with a pause; never for what is hopeless or has lasted too long:
// nobody must train for hours on what cannot be saved. A core.
Retry retry_after(const FailedWrite& failed);

// Values that are infinite or no numbers are never saved.
class RuinedWeightsError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

struct FinishedWrite {
  std::optional<CheckpointName> name;
  std::filesystem::path path;
  double seconds = 0;  // On the writing thread.
};

class CheckpointWriter {
 public:
  // `bytes_expected` are made ready on the writing thread. `device`: where the tensors are, of
  // which some may be on the CPU. `folder` and `memory` are this object's alone from now on. Either
  // may be null; without a folder all must be for the memory alone. A folder that is not taken yet
  // is waited for by the first write; one that has gone since is made again.
  CheckpointWriter(CheckpointFolder* folder, std::size_t bytes_expected, torch::Device device,
                   SnapshotMemory* memory = nullptr);

  // Waits for the write at hand, but not for the folder. An error that nobody has asked for goes to
  // stderr.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Copies the tensors; when it returns they may be changed. Best weights that the write before has
  // not brought to the disk go with them. The best weights are written before the checkpoint that
  // tells their accuracy: were that there and they were lost, none that come later would be better.
  // But not as a folder's first file, which on its own would be another run's (resume.cpp). Throws
  // what the write before has failed of where nothing can make up for that.
  SaveStall save(std::vector<CheckpointFile> files);

  // The same unless a write is at hand, or has failed: false, and nothing is saved. For what is
  // worth no wait.
  bool save_if_idle(std::vector<CheckpointFile> files);

  // Whether the last write has failed, and nothing was saved since. Does not wait.
  std::optional<FailedWrite> failed();

  // Waits for the write at hand. False: failed().
  bool settle();

  // Waits until everything is on the disk. Throws what the last write has failed of, once: the
  // message of a CheckpointError names the file and the reason.
  void finish();

  // What has been written since the last call.
  std::vector<FinishedWrite> take_finished();

  // What was odd about the folder where a write had to take it, since the last call.
  std::vector<std::string> take_warnings();

 private:
  void run(std::size_t bytes_expected, torch::Device device);
  void write(std::vector<CheckpointFile>& files);
  void take_folder();
  bool is_ending();
  // These with the lock.
  void copy(std::vector<CheckpointFile> files);
  void wait_until_idle(std::unique_lock<std::mutex>& lock);
  std::optional<FailedWrite> describe_failure() const;
  std::optional<FailedWrite> take_failure();
  void note_failure(std::exception_ptr failure, std::vector<CheckpointFile> files);

  CheckpointFolder* folder_;
  SnapshotMemory* memory_;
  TensorSnapshot snapshot_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CheckpointFile> due_;  // Empty: nothing to write.
  bool busy_ = true;                 // The writing thread is at work.
  bool ending_ = false;
  std::exception_ptr failure_;  // Of the last write; nobody was told yet.
  int failures_ = 0;            // In a row.
  std::chrono::steady_clock::time_point first_failure_, last_failure_;
  std::optional<CheckpointFile> unwritten_best_;
  std::vector<FinishedWrite> finished_;
  std::vector<std::string> warnings_;
  std::thread thread_;
};

}  // namespace ddprun::trainer
