// A folder of checkpoints: names, order, whole files only, and how many stay.
//
//   epoch_0003_step_0000123.safetensors           3 full epochs and 123 optimizer steps are done
//   last.safetensors                              a link to the newest of these
//   best.safetensors                              the weights with the best accuracy so far
//   manifest.json                                 what there is, with checksums
//   <name>.partial                                being written; renamed once it is on the disk
//   <name>.corrupt                                found damaged when it was to be read
//
// Used by rank 0 only. One process at a time may save; any number may read beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/folder_lock.h"
#include "trainer/formats/safetensors.h"

namespace ddprun::trainer {

struct CheckpointName {
  std::int64_t epoch = 0;
  std::int64_t step = 0;

  bool operator==(const CheckpointName&) const = default;
  std::string file_name() const;
};

// Nothing for any other name.
std::optional<CheckpointName> parse_checkpoint_name(const std::string& file_name);

// A whole file, but another than the manifest lists: a copy from elsewhere, or an older one.
class UnlistedCheckpointError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

// One in which checkpoints cannot be kept, or that is not there; the user can name another.
class UnusableFolderError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

class CheckpointFolder {
 public:
  enum class Access { Save, SaveLater, ReadOnly };

  // Save: makes the folder if it is missing and tries whether files can be written in it; removes
  // *.partial files of its own that an interrupted run left. The newest `kept` checkpoints stay,
  // and never fewer than two: whether the newest is of any use, only the next step's loss will
  // show. ReadOnly changes nothing in the folder, which may be another job's at work. Both read the
  // manifest. Throws CheckpointError, also when another process has the folder to save in for
  // longer than `lock_wait`. SaveLater: as Save, but who finds it taken, or of no use now, goes on
  // without, and calls take() before it reads or saves.
  explicit CheckpointFolder(std::filesystem::path folder, std::size_t kept = 2,
                            Access access = Access::Save, std::chrono::milliseconds lock_wait = {});

  // False where the folder is this object's, or only read. Otherwise waits so long for it, or
  // until `give_up` says so, and does what the constructor left; throws as that. Where the folder
  // that was this object's has been removed or renamed, takes the one of that name, anew and
  // without a wait, unless it is another's or holds what was not saved by this object or found by
  // it at its start: CheckpointError. By any thread, while no other one uses this object for more
  // than list() and path_of().
  bool take(std::chrono::milliseconds lock_wait, const std::function<bool()>& give_up = {});

  // What was found to be odd as the folder was taken: a damaged manifest, a missing file, a folder
  // that has gone.
  const std::vector<std::string>& warnings() const { return warnings_; }

  std::vector<CheckpointName> list() const;  // Ascending by step.
  std::filesystem::path path_of(const CheckpointName& name) const;
  // Whether a checkpoint in it has this checksum.
  bool lists(const std::string& checksum) const;
  bool has_best() const;          // Also where that cannot be told now.
  Safetensors read_best() const;  // Throws as read().
  bool has_damaged() const;       // A checkpoint that was set aside, by this run or an earlier one.

  // Throws SafetensorsError for a file that is damaged, UnlistedCheckpointError for one that the
  // manifest knows as another, SafetensorsAccessError for one that may be sound.
  Safetensors read(const CheckpointName& name) const;

  // Writes a whole checkpoint or none, notes it in the manifest, then removes older ones, and one
  // of the same step under another name: that is the same weights before their validation, and
  // would stand in for an older one. Returns its path. Throws CheckpointError, also where the
  // folder has gone since it was taken; what was there stays.
  std::filesystem::path save(const CheckpointName& name, const Safetensors& contents);
  std::filesystem::path save_best(const Safetensors& contents);

  // Renames a damaged file out of the way and returns its new path; ReadOnly: leaves it.
  std::filesystem::path set_aside(const CheckpointName& name);

  // The same for one that is whole but of no use, and then the folder is as if it had never been
  // saved. Throws CheckpointError.
  std::filesystem::path take_back(const CheckpointName& name);

 private:
  std::filesystem::path write_whole(const std::string& file_name, const Safetensors& contents);
  void make_folder() const;
  void take_if_possible();
  bool try_to_take(std::chrono::milliseconds lock_wait, const std::function<bool()>& give_up);
  void make_ready();
  bool is_held() const { return lock_ && lock_->is_on(folder_); }
  void refuse_others() const;
  std::string gone_text() const;
  [[noreturn]] void throw_taken() const;
  void read_manifest();
  void leave_out_manifest(const std::string& reason);
  void write_manifest();
  void point_last_to(const std::string& file_name) const;
  void sync_folder() const;

  std::filesystem::path folder_;
  std::size_t kept_;
  Access access_;
  std::optional<FolderLock> lock_;  // Nothing: it is not taken.
  bool manifest_is_odd_ = false;    // What stands there now is not ours, or damaged.
  CheckpointManifest manifest_;
  std::optional<CheckpointManifest> lost_;  // Of a folder that has gone, till another is taken.
  std::vector<std::string> warnings_;
};

}  // namespace ddprun::trainer
