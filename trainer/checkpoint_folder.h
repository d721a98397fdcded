// A folder of checkpoints: names, order, whole files only, and how many stay.
//
//   epoch_0003_step_0000123.safetensors           3 full epochs and 123 optimizer steps are done
//   best.safetensors                              the weights with the best accuracy so far
//   <name>.partial                                being written; renamed once it is on the disk
//   <name>.corrupt                                found damaged when it was to be read
//
// Used by rank 0 only, and by one job at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/safetensors.h"

namespace ddprun::trainer {

struct CheckpointName {
  std::int64_t epoch = 0;
  std::int64_t step = 0;

  std::string file_name() const;
};

// Nothing for any other name.
std::optional<CheckpointName> parse_checkpoint_name(const std::string& file_name);

class CheckpointFolder {
 public:
  // Makes the folder if it is missing and tries whether files can be written in it; removes
  // *.partial files that an interrupted run left. Throws CheckpointError.
  explicit CheckpointFolder(std::filesystem::path folder);

  std::vector<CheckpointName> list() const;  // Ascending by step.
  std::filesystem::path path_of(const CheckpointName& name) const;

  // Writes a whole checkpoint or none, then removes all but the newest `checkpoints_kept`.
  // Returns its path. Throws CheckpointError; what was there stays.
  std::filesystem::path save(const CheckpointName& name, const Safetensors& contents);
  void save_best(const Safetensors& contents);

  // Renames a damaged file out of the way and returns its new path.
  std::filesystem::path set_aside(const CheckpointName& name);

  static constexpr std::size_t checkpoints_kept = 2;

 private:
  void write_whole(const std::filesystem::path& path, const Safetensors& contents);
  void sync_folder() const;

  std::filesystem::path folder_;
};

}  // namespace ddprun::trainer
