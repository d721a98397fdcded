// The file of --metrics, a line at a time. A full disk costs the lines that it had no room for, and
// none that come after them; a pipe without a reader, those that nobody reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "worker/unique_fd.h"

namespace ddprun::trainer {

// Not thread-safe.
class MetricsFile {
 public:
  // Adds to the file that is there. Throws std::runtime_error when it cannot be opened. A pipe that
  // nobody reads yet is opened with the first line that finds a reader.
  explicit MetricsFile(std::filesystem::path path);
  ~MetricsFile();  // Lines that are still missing are told of on stderr.
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // `line` comes without its end. What is to be told of it, once of each gap's begin and end; "":
  // nothing.
  std::string add(const std::string& line);

 private:
  int open();

  std::filesystem::path path_;
  worker::UniqueFd fd_;       // None of a pipe that nobody has read yet.
  bool within_line_ = false;  // What was added last, by whomever, is half a line.
  std::int64_t missing_ = 0;  // Lines of the gap.
};

}  // namespace ddprun::trainer
