// A full disk costs the log and not the training: the first failed write is the last one tried.
#include "trainer/report/tensorboard_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

constexpr std::chrono::seconds flush_interval{2};

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
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_) fail(std::strerror(errno));
  write(version_record(unix_time_s()), /*flush=*/true);
}

void TensorboardWriter::start(std::int64_t step, std::string_view text_tag,
                              std::string_view markdown) {
  const double now_s = unix_time_s();
  // Events of step `step` itself were written before the checkpoint of that step, and stay.
  write(session_start_record({now_s, step + 1}), /*flush=*/false);
  write(text_record({now_s, step}, text_tag, markdown), /*flush=*/true);
}

void TensorboardWriter::scalars(std::int64_t step, const std::vector<Scalar>& values) {
  const bool due = std::chrono::steady_clock::now() - flushed_at_ >= flush_interval;
  write(scalars_record({unix_time_s(), step}, values), due);
}

void TensorboardWriter::flush() { write("", /*flush=*/true); }

std::string TensorboardWriter::take_problem() { return std::exchange(problem_, ""); }

void TensorboardWriter::write(const std::string& record, bool flush) {
  if (!file_) return;
  file_ << record;
  if (flush) {
    file_.flush();
    flushed_at_ = std::chrono::steady_clock::now();
  }
  if (!file_) {
    problem_ = fmt::format("--tensorboard: cannot write to {} ({}); nothing more is written there",
                           path_.string(), std::strerror(errno));
  }
}

}  // namespace ddprun::trainer
