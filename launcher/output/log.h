// One log file: a stream's exact bytes, cut into several files by size when that is asked for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/output/log_rotation.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// Where a file ends and the next begins: at the last line's end within `bytes_max`. A line whose
// beginning is already in the file is completed there, and cut only at twice `bytes_max`. Pure.
class LogCut {
 public:
  // `size`, `line_start`: of what the current file holds already.
  explicit LogCut(std::size_t bytes_max, std::size_t size = 0, bool line_start = true)
      : bytes_max_(bytes_max), size_(size), line_start_(line_start) {}

  struct Step {
    bool new_file = false;  // Begin the next file before writing.
    std::size_t bytes = 0;  // How many of the bytes go into it now.
  };
  // Call again with what is left of `bytes` until nothing is.
  Step next(std::string_view bytes);

 private:
  Step fill(std::string_view bytes, std::size_t count);

  std::size_t bytes_max_;
  std::size_t size_;
  bool line_start_;  // The current file ends with a whole line, or is empty.
  bool full_ = false;
};

// Where `path`'s full file of this number is, and which there are, the oldest first. Reads a
// folder.
std::string full_log_path(const std::string& path, int number);
std::vector<int> full_logs(const std::string& path);

// Opened for appending, closed on exec. Full files get numbers behind their name in the order in
// which they became full ("stdout.log.1" is the oldest), and keep them. One that is there already
// is gone on with: what it holds counts, and so do its full files.
class OutputLog {
 public:
  // Makes the folders too. Throws std::system_error, naming the path.
  explicit OutputLog(std::string path, LogRotation rotation = {});

  // 0, or the errno of what went wrong. A next file that cannot be begun is tried again by the next
  // call, and no full one grows meanwhile.
  int write(std::string_view bytes);

  // The descriptor alone, for a child that writes by itself. Throws as the constructor does.
  static rendezvous::UniqueFd open(const std::string& path);

 private:
  int begin_next_file();
  int keep_full_file();
  void remove_oldest() const;

  std::string path_;
  LogRotation rotation_;
  rendezvous::UniqueFd fd_;
  LogCut cut_;
  int full_files_ = 0;
};

}  // namespace ddprun::launcher
