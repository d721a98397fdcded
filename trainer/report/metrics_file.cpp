// Each line is one write: what was written before a crash is there. Nothing is taken back of half a
// line, since another process may have added to the file meanwhile.
#include "trainer/report/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <utility>

#include "command_line/write_all.h"
#include "plot/half_line.h"

namespace ddprun::trainer {
namespace {

// As long as it lives a pipe whose reader has gone is an error of this thread's write(), and not
// the process's end. Elsewhere it stays that: `train | head` ends with head.
class PipeSignalHeld {
 public:
  PipeSignalHeld() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalHeld() {
    const timespec at_once{};
    while (::sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  PipeSignalHeld(const PipeSignalHeld&) = delete;
  PipeSignalHeld& operator=(const PipeSignalHeld&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path) : path_(std::move(path)) {
  if (const int error = open(); error != 0 && error != EPIPE) {
    throw std::runtime_error(fmt::format("--metrics: cannot open {} for appending: {}",
                                         path_.string(), std::strerror(error)));
  }
  within_line_ = plot::ends_within_line(path_);
}

// 0, or why not. A named pipe that nobody reads would be waited for: by all ranks, and for ever
// where its reader ended with the attempt before.
int MetricsFile::open() {
  fd_ = worker::UniqueFd(
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd_) {
    const int error = errno;
    std::error_code ignored;
    return error == ENXIO && std::filesystem::is_fifo(path_, ignored) ? EPIPE : error;
  }
  // From here on a slow reader holds up the writer, as for any program.
  ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) & ~O_NONBLOCK);
  return 0;
}

MetricsFile::~MetricsFile() {
  if (missing_ == 0) return;
  std::cerr << fmt::format(
      "train: warning: --metrics: lines that are missing at the end of {}: {}\n", path_.string(),
      missing_);
}

std::string MetricsFile::add(const std::string& line) {
  const std::string text = (within_line_ ? "\n" : "") + line + '\n';
  const PipeSignalHeld held;
  command_line::Written done;
  if (!fd_) done.error = open();
  if (done.error == 0) done = command_line::write_all(fd_.get(), text);
  if (done.bytes > 0) within_line_ = text[done.bytes - 1] != '\n';
  if (done.error == 0) {
    const std::int64_t missing = std::exchange(missing_, 0);
    if (missing == 0) return "";
    return fmt::format("--metrics: {} can be written again; lines that are missing there: {}",
                       path_.string(), missing);
  }
  if (missing_++ > 0) return "";
  return fmt::format("--metrics: cannot write to {} ({}); lines are missing there until it can be",
                     path_.string(), std::strerror(done.error));
}

}  // namespace ddprun::trainer
