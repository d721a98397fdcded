// --tensorboard: one event file of this run in a folder that TensorBoard watches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/report/tensorboard_records.h"
#include "worker/unique_fd.h"

namespace ddprun::trainer {

// Not thread-safe. What is told is in the file at once: a run that is killed has shown all of it.
class TensorboardWriter {
 public:
  // Makes the folder and a file in it. Throws std::runtime_error when that cannot be.
  explicit TensorboardWriter(const std::filesystem::path& folder);

  // Before all else: the run goes on after `step` steps (0: it is new). What the folder shows of
  // later steps is of an attempt that was given up, and disappears.
  void start(std::int64_t step, std::string_view text_tag, std::string_view markdown);

  void scalars(std::int64_t step, const std::vector<Scalar>& values);

  // That records begin to be missing in the file, and why, or that no more are, once each; "":
  // nothing.
  std::string take_problem();

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& record);
  int add(const std::string& records);

  std::filesystem::path path_;
  worker::UniqueFd fd_;
  std::int64_t size_ = 0;  // Bytes of whole records.
  std::string begin_;      // Without which a reader shows what was given up; until it is written.
  bool fails_ = false;     // So did the last write.
  std::string problem_;
};

}  // namespace ddprun::trainer
