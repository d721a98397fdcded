// Files are looked at again after a pause: they may lie on file systems that tell of no change, and
// a quarter of a second is soon enough for a person.
#include "launcher/watch/follow_logs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/watch/found_looks.h"
#include "launcher/watch/job_lines.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds logs_answer_limit{2'000};
constexpr int pause_ms = 250;
constexpr int looks_per_question = 4;  // The launcher is asked once in so many pauses.
constexpr int lines_of_follow = 10;
constexpr std::size_t piece_bytes = 65'536;

// One stream's file, from where it was read to last.
class ReadLog {
 public:
  // `lines`: begin with the last ones; nothing: with the first.
  ReadLog(std::string path, std::string prefix, std::optional<int> lines)
      : path_(std::move(path)), prefix_(std::move(prefix)), lines_(lines) {}

  // Writes what is new, in whole lines unless `last`. False: nobody reads what we write.
  bool pass_on(bool last) {
    if (!open()) return true;
    std::string text;
    char piece[piece_bytes];
    for (ssize_t count; (count = ::read(fd_.get(), piece, sizeof piece)) > 0;) {
      text.append(piece, static_cast<std::size_t>(count));
      if (text.size() >= piece_bytes && !write_lines(text, /*last=*/false)) return false;
    }
    return write_lines(text, last);
  }

 private:
  // A file that was rotated away is read to its end first: what stands under its name is another.
  bool open() {
    struct stat there {
    }, here{};
    const bool exists = ::stat(path_.c_str(), &there) == 0;
    if (fd_) {
      const bool same = !exists || (::fstat(fd_.get(), &here) == 0 && here.st_ino == there.st_ino &&
                                    here.st_dev == there.st_dev);
      if (same) return true;
      if (has_more()) return true;
      fd_.reset();
      lines_.reset();
    }
    if (!exists) return false;
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd_ && lines_) seek_to_last(*lines_);
    return fd_.valid();
  }

  bool has_more() const {
    struct stat facts {};
    const off_t at = ::lseek(fd_.get(), 0, SEEK_CUR);
    return ::fstat(fd_.get(), &facts) == 0 && at < facts.st_size;
  }

  // Backwards, piece by piece, until so many ends of lines were met.
  void seek_to_last(int lines) {
    struct stat facts {};
    if (::fstat(fd_.get(), &facts) != 0) return;
    off_t at = facts.st_size;
    int met = 0;
    char piece[piece_bytes];
    while (at > 0) {
      const auto size = static_cast<std::size_t>(std::min<off_t>(at, sizeof piece));
      at -= static_cast<off_t>(size);
      const ssize_t count = ::pread(fd_.get(), piece, size, at);
      if (count <= 0) return;
      for (ssize_t i = count - 1; i >= 0; --i) {
        const off_t place = at + i;
        if (piece[i] != '\n' || place == facts.st_size - 1) continue;
        if (++met == lines) {
          ::lseek(fd_.get(), place + 1, SEEK_SET);
          return;
        }
      }
    }
    if (lines == 0) ::lseek(fd_.get(), facts.st_size, SEEK_SET);
  }

  bool write_lines(std::string& text, bool last) {
    rest_ += text;
    text.clear();
    std::size_t at = 0;
    for (std::size_t end; (end = rest_.find('\n', at)) != rest_.npos; at = end + 1) {
      if (!write_line(std::string_view(rest_).substr(at, end - at))) return false;
    }
    rest_.erase(0, at);
    if (last && !rest_.empty()) {
      if (!write_line(rest_)) return false;
      rest_.clear();
    }
    return std::fflush(stdout) == 0;
  }

  bool write_line(std::string_view line) const {
    return std::fwrite(prefix_.data(), 1, prefix_.size(), stdout) == prefix_.size() &&
           std::fwrite(line.data(), 1, line.size(), stdout) == line.size() &&
           std::fputc('\n', stdout) != EOF;
  }

  std::string path_;
  std::string prefix_;
  std::optional<int> lines_;
  rendezvous::UniqueFd fd_;
  std::string rest_;  // The beginning of a line whose end is to come.
};

class Logs {
 public:
  explicit Logs(const WatchCommand& command) : command_(command), looks_(command) {}

  int run() {
    looks_.look(logs_answer_limit);
    if (looks_.looks().empty()) return 1;
    if (!looks_.is_remote()) add_files(first_lines());
    if (command_.follow) tell_of_others();
    if (!command_.follow && show_others()) return pass_on(/*last=*/true) ? 0 : 1;
    if (files_.empty()) return say_that_there_are_none();
    if (!command_.follow) return pass_on(/*last=*/true) ? 0 : 1;
    for (int i = 1; pass_on(/*last=*/false); ++i) {
      ::poll(nullptr, 0, pause_ms);
      if (i % looks_per_question != 0) continue;
      looks_.look(logs_answer_limit);
      if (!looks_.found()) {
        pass_on(/*last=*/true);
        return 0;
      }
      add_files(std::nullopt);  // Of an attempt that began meanwhile: all of them.
    }
    return 0;
  }

 private:
  // Of ranks on other hosts, which their launchers read. False: there is nothing.
  bool show_others() {
    bool any = false;
    for (const FoundJob& job : looks_.jobs()) {
      const bool all_here = !looks_.is_remote() && job.snapshot->others.empty();
      const auto is_wanted = [&](const RankSnapshot& rank) { return rank.rank == *command_.rank; };
      const auto& own = job.snapshot->ranks;
      const bool is_here =
          !looks_.is_remote() && command_.rank && std::any_of(own.begin(), own.end(), is_wanted);
      if (all_here || is_here) continue;
      for (const std::string& line :
           other_log_lines(looks_, job, command_.rank, command_.lines.value_or(0))) {
        std::printf("%s\n", line.c_str());
        any = true;
      }
    }
    return any;
  }

  void tell_of_others() const {
    for (const Look& look : looks_.looks()) {
      for (const NodeView& node : look.now.others) {
        for (const RankSnapshot& rank : node.ranks) {
          if (!command_.rank || rank.rank != *command_.rank) continue;
          std::fprintf(stderr,
                       "ddprun logs: rank %d runs on %s: follow it there, or leave out -f for the "
                       "end of its log\n",
                       rank.rank, node.host.c_str());
        }
      }
    }
  }

  std::optional<int> first_lines() const {
    if (command_.lines || !command_.follow) return command_.lines;
    return lines_of_follow;
  }

  void add_files(std::optional<int> lines) {
    std::size_t ranks = 0;
    for (const Look& look : looks_.looks()) ranks += look.now.ranks.size();
    const bool names = ranks > 1 && !command_.rank;
    for (const Look& look : looks_.looks()) {
      for (const RankSnapshot& rank : look.now.ranks) {
        if (command_.rank && rank.rank != *command_.rank) continue;
        const std::string prefix = names ? fmt::format("[{}]: ", rank.rank) : "";
        for (const std::string& path : {rank.stdout_file, rank.stderr_file}) {
          if (!path.empty()) files_.try_emplace(path, path, prefix, lines);
        }
      }
    }
  }

  bool pass_on(bool last) {
    return std::all_of(files_.begin(), files_.end(),
                       [last](auto& file) { return file.second.pass_on(last); });
  }

  int say_that_there_are_none() const {
    std::fputs(command_.rank
                   ? "ddprun logs: no rank of this number writes log files here\n"
                   : "ddprun logs: the job writes to its console alone; start it with --tee 3 for "
                     "files as well, or with --redirects 3\n",
               stderr);
    return 1;
  }

  WatchCommand command_;
  FoundLooks looks_;
  std::map<std::string, ReadLog> files_;  // By path.
};

}  // namespace

int run_logs(const WatchCommand& command) { return Logs(command).run(); }

}  // namespace ddprun::launcher
