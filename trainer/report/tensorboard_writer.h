// --tensorboard: one event file of this run in a folder that TensorBoard watches.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/report/tensorboard_records.h"

namespace ddprun::trainer {

// Not thread-safe. Written to the disk every few seconds and at the end.
class TensorboardWriter {
 public:
  // Makes the folder and a file in it. Throws std::runtime_error when that cannot be.
  explicit TensorboardWriter(const std::filesystem::path& folder);

  // Before all else: the run goes on after `step` steps (0: it is new). What the folder shows of
  // later steps is of an attempt that was given up, and disappears.
  void start(std::int64_t step, std::string_view text_tag, std::string_view markdown);

  void scalars(std::int64_t step, const std::vector<Scalar>& values);
  void flush();

  // Why the file is incomplete, once; "" when it is not. Nothing is written after an error.
  std::string take_problem();

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& record, bool flush);

  std::filesystem::path path_;
  std::ofstream file_;
  std::chrono::steady_clock::time_point flushed_at_;
  std::string problem_;
};

}  // namespace ddprun::trainer
