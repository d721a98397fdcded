// Writes checkpoints while training goes on: a step waits only for the copy in memory.
//
// One write is in flight at a time: a save that comes before the last one is on the disk waits for
// it, because leaving one out would lose what the user asked for, and a queue would need memory for
// several models. All calls from one thread.
#pragma once

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

namespace ddprun::trainer {

// One file of a save: a checkpoint, or the best weights. With a SnapshotMemory, checkpoints also go
// there, and those that are for it alone go nowhere else.
struct CheckpointFile {
  std::optional<CheckpointName> name;  // Nothing: the best weights.
  Safetensors contents;
  bool is_copy = false;  // Nobody changes these tensors: they need not be copied.
  bool memory_only = false;
};

struct SaveStall {
  double waited_s = 0;  // For the write before.
  double copied_s = 0;  // For the copy.
};

struct FinishedWrite {
  std::optional<CheckpointName> name;
  std::filesystem::path path;
  double seconds = 0;  // On the writing thread.
};

class CheckpointWriter {
 public:
  // `bytes_expected` are made ready on the writing thread. `folder` and `memory` are this object's
  // alone from now on. Either may be null; without a folder all must be for the memory alone. A
  // folder that is not taken yet is waited for by the first write.
  CheckpointWriter(CheckpointFolder* folder, std::size_t bytes_expected, bool from_gpu,
                   SnapshotMemory* memory = nullptr);

  // Waits for the write at hand, but not for the folder. An error that nobody has asked for goes to
  // stderr.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Copies the tensors; when it returns they may be changed. Throws CheckpointError if the write
  // before has failed: its message names the file and the reason.
  SaveStall save(std::vector<CheckpointFile> files);

  // The same unless a write is at hand: false, and nothing is saved. For what is worth no wait.
  bool save_if_idle(std::vector<CheckpointFile> files);

  // Waits until everything is on the disk. Throws as save() does.
  void finish();

  // What has been written since the last call.
  std::vector<FinishedWrite> take_finished();

 private:
  void run(std::size_t bytes_expected, bool from_gpu);
  void write(const std::vector<CheckpointFile>& files);
  bool is_ending();
  void copy(std::vector<CheckpointFile> files);              // With the lock.
  void wait_until_idle(std::unique_lock<std::mutex>& lock);  // And throws what has failed.

  CheckpointFolder* folder_;
  SnapshotMemory* memory_;
  TensorSnapshot snapshot_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CheckpointFile> due_;  // Empty: nothing to write.
  bool busy_ = true;                 // The writing thread is at work.
  bool ending_ = false;
  std::exception_ptr failure_;
  std::vector<FinishedWrite> finished_;
  std::thread thread_;
};

}  // namespace ddprun::trainer
