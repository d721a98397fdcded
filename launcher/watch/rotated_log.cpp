// A rotation only renames: a file that is open is read to its end, whatever it is called by then.
#include "launcher/watch/rotated_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "launcher/output/log.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t piece_bytes = 65'536;
constexpr int current = 0;  // The file that is being written has no number yet.

}  // namespace

RotatedLog::RotatedLog(std::string path, std::string prefix, std::optional<int> lines)
    : path_(std::move(path)), prefix_(std::move(prefix)), lines_(lines) {}

bool RotatedLog::pass_on(Unfinished unfinished) {
  if (!fd_ && !open_first()) return true;
  const auto write = [this](std::string_view line) { return write_line(line); };
  for (;;) {
    // Asked first: to a file that has a next one nothing is added any more.
    const auto next = next_file();
    char piece[piece_bytes];
    for (ssize_t count; (count = ::read(fd_.get(), piece, sizeof piece)) > 0;) {
      if (!shown_.add({piece, static_cast<std::size_t>(count)}, write)) return false;
    }
    if (!next || !open_next(*next)) break;
  }
  if (unfinished == Unfinished::State && !shown_.show_state(write)) return false;
  if (unfinished == Unfinished::All && !shown_.finish(write)) return false;
  return std::fflush(stdout) == 0;
}

rendezvous::UniqueFd RotatedLog::file(int number) const {
  const std::string path = number == current ? path_ : full_log_path(path_, number);
  rendezvous::UniqueFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened && (errno == EMFILE || errno == ENFILE)) {
    throw std::system_error(
        errno, std::generic_category(),
        "cannot read " + path + " (ulimit -n raises the limit, --rank N reads one rank's files)");
  }
  return opened;
}

// The first file, or from the newest backwards to the one in which the last lines begin.
bool RotatedLog::open_first() {
  std::vector<int> full;
  do {  // Until none has become full between.
    full = full_logs(path_);
    fd_ = file(current);
  } while (full != full_logs(path_));
  if (!fd_) return false;
  number_ = full.empty() ? 1 : full.back() + 1;
  for (int wanted = lines_ ? seek_to_last(*lines_) : 1; wanted > 0 && !full.empty();) {
    rendezvous::UniqueFd older = file(full.back());
    if (!older) break;  // Removed, as --log-keep asks for.
    fd_ = std::move(older);
    number_ = full.back();
    full.pop_back();
    if (lines_) wanted = seek_to_last(wanted);
  }
  return true;
}

// What follows the open file, once that is full.
std::optional<int> RotatedLog::next_file() const {
  struct stat there {};
  const bool exists = ::stat(path_.c_str(), &there) == 0;
  if (exists && is_open(there)) return std::nullopt;
  const std::vector<int> full = full_logs(path_);
  const auto later = std::upper_bound(full.begin(), full.end(), number_);
  if (later != full.end()) return *later;
  return exists ? std::optional<int>(current) : std::nullopt;
}

// False: it cannot be read.
bool RotatedLog::open_next(int number) {
  rendezvous::UniqueFd next = file(number);
  if (!next) return number != current && errno == ENOENT;        // Removed: the one after it.
  if (number == current && next_file() != current) return true;  // It has become full.
  if (number > number_ + 1) {
    std::fprintf(stderr,
                 "ddprun logs: --log-keep has removed %d files of %s before they were read\n",
                 number - number_ - 1, path_.c_str());
  }
  fd_ = std::move(next);
  number_ = number == current ? number_ + 1 : number;
  return true;
}

bool RotatedLog::is_open(const struct stat& there) const {
  struct stat here {};
  return ::fstat(fd_.get(), &here) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

// Backwards, piece by piece, until so many ends of lines were met. Returns how many lines are
// missing.
int RotatedLog::seek_to_last(int lines) {
  struct stat facts {};
  if (::fstat(fd_.get(), &facts) != 0) return 0;
  off_t at = facts.st_size;
  int met = 0;
  char piece[piece_bytes];
  while (at > 0 && lines > 0) {
    const auto size = static_cast<std::size_t>(std::min<off_t>(at, sizeof piece));
    at -= static_cast<off_t>(size);
    const ssize_t count = ::pread(fd_.get(), piece, size, at);
    if (count <= 0) return 0;
    for (ssize_t i = count - 1; i >= 0; --i) {
      const off_t place = at + i;
      if (piece[i] != '\n' || place == facts.st_size - 1) continue;
      if (++met == lines) {
        ::lseek(fd_.get(), place + 1, SEEK_SET);
        return 0;
      }
    }
  }
  if (lines == 0) ::lseek(fd_.get(), facts.st_size, SEEK_SET);
  return facts.st_size == 0 ? lines : std::max(lines - met - 1, 0);
}

bool RotatedLog::write_line(std::string_view line) const {
  return std::fwrite(prefix_.data(), 1, prefix_.size(), stdout) == prefix_.size() &&
         std::fwrite(line.data(), 1, line.size(), stdout) == line.size() &&
         std::fputc('\n', stdout) != EOF;
}

}  // namespace ddprun::launcher
