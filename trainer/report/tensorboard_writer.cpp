// A full disk costs records of the log, and neither the training nor what comes later. Half a
// record is taken back, since readers go no further.
#include "trainer/report/tensorboard_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "command_line/write_all.h"
#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

double unix_time_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

TensorboardWriter::TensorboardWriter(const std::filesystem::path& folder) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error(
        fmt::format("--tensorboard: cannot make a file in {}: {}", folder.string(), why));
  };
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(error.message());
  std::vector<std::string> existing;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    existing.push_back(entry->path().filename().string());
  }
  if (error) fail(error.message());
  path_ =
      folder / event_file_name(existing, std::time(nullptr), worker::own_host_name(), ::getpid());
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  if (!fd_) fail(std::strerror(errno));
  write("");
}

void TensorboardWriter::start(std::int64_t step, std::string_view text_tag,
                              std::string_view markdown) {
  const double now_s = unix_time_s();
  // Events of step `step` itself were written before the checkpoint of that step, and stay.
  begin_ = session_start_record({now_s, step + 1});
  write(text_record({now_s, step}, text_tag, markdown));
}

void TensorboardWriter::scalars(std::int64_t step, const std::vector<Scalar>& values) {
  write(scalars_record({unix_time_s(), step}, values));
}

std::string TensorboardWriter::take_problem() { return std::exchange(problem_, ""); }

void TensorboardWriter::write(const std::string& record) {
  // The first is what a reader knows the file by. Neither may be lost, whatever else was.
  const std::string records = (size_ == 0 ? version_record(unix_time_s()) : "") + begin_ + record;
  const int error = add(records);
  if (error == 0) {
    size_ += static_cast<std::int64_t>(records.size());
    begin_.clear();
  }
  const bool failed = std::exchange(fails_, error != 0);
  if (failed == fails_) return;
  problem_ = fails_ ? fmt::format(
                          "--tensorboard: cannot write to {} ({}); records are missing "
                          "there until it can be",
                          path_.string(), std::strerror(error))
                    : fmt::format(
                          "--tensorboard: {} can be written again; what came meanwhile "
                          "is missing there",
                          path_.string());
}

// Returns the errno of what failed, or 0.
int TensorboardWriter::add(const std::string& records) {
  if (fails_ && ::ftruncate(fd_.get(), size_) != 0) return errno;
  return command_line::write_all(fd_.get(), records).error;
}

}  // namespace ddprun::trainer
