// One log file: a stream's exact bytes, cut into several files by size when that is asked for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// Writes all of it; returns the errno of the failure, or 0.
int write_all(int fd, std::string_view bytes);

struct LogRotation {
  std::size_t bytes_max = 0;  // Of one file; 0 = one file, however long.
  int keep = -1;              // How many full files stay beside the current one; -1 = all.
};

// Where a file ends and the next begins: at the last line's end within `bytes_max`. A line whose
// beginning is already in the file is completed there, and cut only at twice `bytes_max`. Pure.
class LogCut {
 public:
  explicit LogCut(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  struct Step {
    bool new_file = false;  // Begin the next file before writing.
    std::size_t bytes = 0;  // How many of the bytes go into it now.
  };
  // Call again with what is left of `bytes` until nothing is.
  Step next(std::string_view bytes);

 private:
  Step fill(std::string_view bytes, std::size_t count);

  std::size_t bytes_max_;
  std::size_t size_ = 0;
  bool line_start_ = true;  // The current file ends with a whole line, or is empty.
  bool full_ = false;
};

// Where `path`'s full file of this number is, and which there are, the oldest first. Reads a
// folder.
std::string full_log_path(const std::string& path, int number);
std::vector<int> full_logs(const std::string& path);

// Opened for appending, closed on exec. Full files get numbers behind their name in the order in
// which they became full ("stdout.log.1" is the oldest), and keep them.
class OutputLog {
 public:
  // Makes the folders too. Throws std::system_error, naming the path.
  explicit OutputLog(std::string path, LogRotation rotation = {});
  ~OutputLog();
  OutputLog(const OutputLog&) = delete;
  OutputLog& operator=(const OutputLog&) = delete;

  // 0, or the errno of what went wrong.
  int write(std::string_view bytes);
  const std::string& path() const { return path_; }

  // The descriptor alone, for a child that writes by itself. Throws as the constructor does.
  static int open(const std::string& path);

 private:
  int begin_next_file();

  std::string path_;
  LogRotation rotation_;
  LogCut cut_;
  int fd_;
  int full_files_ = 0;
};

}  // namespace ddprun::launcher
