// Where a file is cut (LogCut, without a file) and what is done about it (OutputLog).
#include "launcher/output/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "command_line/write_all.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {

namespace {

using rendezvous::UniqueFd;

// None of ours is so high, and there is room behind it.
constexpr int log_number_max = 1'000'000'000;

UniqueFd open_to_append(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

// Where to cut a file that may hold something already. By its descriptor: another writer may have
// given its name to the next file.
LogCut cut_of(int fd, std::size_t bytes_max) {
  struct stat status {};
  if (bytes_max == 0 || ::fstat(fd, &status) != 0 || status.st_size <= 0) {
    return LogCut(bytes_max);
  }
  char last = '\n';
  const std::string same = "/proc/self/fd/" + std::to_string(fd);
  const UniqueFd file(::open(same.c_str(), O_RDONLY | O_CLOEXEC));
  if (file && ::pread(file.get(), &last, 1, status.st_size - 1) != 1) last = '\n';
  return LogCut(bytes_max, static_cast<std::size_t>(status.st_size), last == '\n');
}

// 0 or an errno: EEXIST where `to` is there, which stays as it is.
int rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // NFS and old kernels have no such rename, but a link never replaces anything either.
  if (::link(from.c_str(), to.c_str()) == 0) return ::unlink(from.c_str()) == 0 ? 0 : errno;
  if (errno != EPERM && errno != ENOSYS && errno != EOPNOTSUPP) return errno;
  // Some file systems have no links either: only two who come here at the same moment are not seen.
  if (::access(to.c_str(), F_OK) == 0) return EEXIST;
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace

LogCut::Step LogCut::fill(std::string_view bytes, std::size_t count) {
  size_ += count;
  if (count > 0) line_start_ = bytes[count - 1] == '\n';
  return {false, count};
}

LogCut::Step LogCut::next(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (bytes_max_ == 0) return fill(bytes, bytes.size());
  Step step;
  if (full_) {
    full_ = false;
    size_ = 0;
    step.new_file = true;
  }
  const std::size_t room = bytes_max_ - std::min(size_, bytes_max_);
  std::size_t count = bytes.size();
  if (bytes.size() > room) {
    const std::size_t last_end = room == 0 ? bytes.npos : bytes.rfind('\n', room - 1);
    if (last_end != bytes.npos) {
      count = last_end + 1;
      full_ = true;
    } else if (line_start_ && size_ > 0) {
      full_ = true;
      Step next_file = next(bytes);
      next_file.new_file = true;
      return next_file;
    } else {  // A line that is longer than a file.
      const std::size_t hard_room = 2 * bytes_max_ - std::min(size_, 2 * bytes_max_);
      const std::size_t end = bytes.find('\n', room);
      full_ = std::min(end, bytes.size()) >= hard_room || end != bytes.npos;
      count = std::min({end == bytes.npos ? bytes.size() : end + 1, hard_room, bytes.size()});
    }
  }
  step.bytes = fill(bytes, count).bytes;
  return step;
}

OutputLog::OutputLog(std::string path, LogRotation rotation)
    : path_(std::move(path)),
      rotation_(rotation),
      fd_(open(path_)),
      cut_(cut_of(fd_.get(), rotation.bytes_max)) {
  if (rotation.bytes_max == 0) return;
  const std::vector<int> full = full_logs(path_);
  if (!full.empty()) full_files_ = full.back();
}

UniqueFd OutputLog::open(const std::string& path) {
  std::error_code ignored;  // open() says what is wrong.
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  UniqueFd fd = open_to_append(path);
  if (!fd) {
    throw std::system_error(errno, std::generic_category(), "cannot write the log file " + path);
  }
  return fd;
}

int OutputLog::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const LogCut before = cut_;
    const LogCut::Step step = cut_.next(bytes);
    if (step.new_file) {
      if (const int error = begin_next_file()) {
        cut_ = before;  // The file is as full as it was, and may have its number already.
        return error;
      }
    }
    const int error = command_line::write_all(fd_.get(), bytes.substr(0, step.bytes)).error;
    if (error != 0) return error;
    bytes.remove_prefix(step.bytes);
  }
  return 0;
}

std::string full_log_path(const std::string& path, int number) {
  return path + "." + std::to_string(number);
}

std::vector<int> full_logs(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string begin = whole.filename().string() + ".";
  std::vector<int> numbers;
  const auto folder = whole.has_parent_path() ? whole.parent_path() : ".";
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(begin)) continue;
    const int number = rendezvous::parse_number<int>(name.substr(begin.size())).value_or(0);
    if (number > 0 && number <= log_number_max) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The file being written keeps its plain name, for whoever follows it with tail -F.
int OutputLog::keep_full_file() {
  for (;;) {
    const int error = rename_to_new(path_, full_log_path(path_, full_files_ + 1));
    if (error == ENOENT) return 0;  // Somebody has removed it, or taken it away.
    if (error != 0 && error != EEXIST) return error;
    ++full_files_;
    if (error == 0) return 0;  // Else another writer has this number.
  }
}

// Whoever has written them: another writer may keep more.
void OutputLog::remove_oldest() const {
  if (rotation_.keep < 0) return;
  std::vector<int> full = full_logs(path_);
  full.resize(full.size() - std::min(full.size(), static_cast<std::size_t>(rotation_.keep)));
  for (const int number : full) ::unlink(full_log_path(path_, number).c_str());
}

int OutputLog::begin_next_file() {
  if (const int error = keep_full_file()) return error;
  remove_oldest();
  UniqueFd fd = open_to_append(path_);
  if (!fd) return errno;
  fd_ = std::move(fd);
  return 0;
}

}  // namespace ddprun::launcher
