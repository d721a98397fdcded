// Files are looked at again after a pause: they may lie on file systems that tell of no change, and
// a quarter of a second is soon enough for a person.
#include "launcher/watch/follow_logs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/output/log.h"
#include "launcher/watch/found_looks.h"
#include "launcher/watch/job_lines.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds logs_answer_limit{2'000};
constexpr int pause_ms = 250;
constexpr int looks_per_question = 4;  // The launcher is asked once in so many pauses.
constexpr int lines_of_follow = 10;
constexpr std::size_t piece_bytes = 65'536;

// What a stream has written, from where it was read to last: in one file, or with --log-rotate in
// full ones and the one that is being written.
class ReadLog {
 public:
  // `lines`: begin with the last ones; nothing: with the first.
  ReadLog(std::string path, std::string prefix, std::optional<int> lines)
      : path_(std::move(path)), prefix_(std::move(prefix)), lines_(lines) {}

  // Writes what is new, in whole lines unless `last`. False: nobody reads what we write.
  bool pass_on(bool last) {
    if (!fd_ && !open_first()) return true;
    std::string text;
    for (;;) {
      // Asked first: to a file that has a next one nothing is added any more.
      const auto next = next_file();
      char piece[piece_bytes];
      for (ssize_t count; (count = ::read(fd_.get(), piece, sizeof piece)) > 0;) {
        text.append(piece, static_cast<std::size_t>(count));
        if (text.size() >= piece_bytes && !write_lines(text, /*last=*/false)) return false;
      }
      if (!next || !open_next(*next)) break;
    }
    return write_lines(text, last);
  }

 private:
  static constexpr int current = 0;  // The file that is being written has no number yet.

  rendezvous::UniqueFd file(int number) const {
    const std::string path = number == current ? path_ : full_log_path(path_, number);
    return rendezvous::UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }

  // The first file, or from the newest backwards to the one in which the last lines begin.
  bool open_first() {
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
  std::optional<int> next_file() const {
    struct stat there {};
    const bool exists = ::stat(path_.c_str(), &there) == 0;
    if (exists && is_open(there)) return std::nullopt;
    const std::vector<int> full = full_logs(path_);
    const auto later = std::upper_bound(full.begin(), full.end(), number_);
    if (later != full.end()) return *later;
    return exists ? std::optional<int>(current) : std::nullopt;
  }

  // False: it cannot be read.
  bool open_next(int number) {
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

  bool is_open(const struct stat& there) const {
    struct stat here {};
    return ::fstat(fd_.get(), &here) == 0 && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
  }

  // Backwards, piece by piece, until so many ends of lines were met. Returns how many lines are
  // missing.
  int seek_to_last(int lines) {
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
  int number_ = 0;    // That the open file has, or gets when it is full.
  std::string rest_;  // The beginning of a line whose end is to come.
};

// A launcher's run: an attempt may begin and end between two looks at it, and leaves its folder.
struct FollowedRun {
  JobSnapshot last;
  std::set<fs::path> known;  // Folders of attempts that are read, or were over at the first look.
};

// Those of one run, the oldest first.
std::vector<std::pair<fs::file_time_type, fs::path>> attempt_folders(const fs::path& run) {
  std::vector<std::pair<fs::file_time_type, fs::path>> folders;
  std::error_code error;
  for (fs::directory_iterator entry(run, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with("attempt_")) continue;
    std::error_code gone;
    const fs::file_time_type made = entry->last_write_time(gone);
    if (!gone) folders.emplace_back(made, entry->path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

class Logs {
 public:
  explicit Logs(const WatchCommand& command) : command_(command), looks_(command) {
    if (command.follow) looks_.keep_all();
  }

  int run() {
    looks_.look(logs_answer_limit);
    for (const std::string& note : looks_.notes()) std::fprintf(stderr, "%s\n", note.c_str());
    if (looks_.looks().empty()) return 1;
    if (!looks_.is_remote()) add_files(first_lines(), /*with_missed=*/false);
    if (!command_.follow) {
      if (show_others()) return pass_on(/*last=*/true) ? 0 : 1;
      if (files_.empty()) return say_that_there_are_none();
      return pass_on(/*last=*/true) ? 0 : 1;
    }
    tell_of_others();
    if (files_.empty() && waits_for_workers()) {
      std::fputs("ddprun logs: no workers yet; what they write follows\n", stderr);
    }
    for (int i = 1; !files_.empty() || waits_for_workers(); ++i) {
      if (!pass_on(/*last=*/false)) return 0;
      ::poll(nullptr, 0, pause_ms);
      if (i % looks_per_question != 0) continue;
      looks_.look(logs_answer_limit);
      if (!looks_.found()) {
        for (auto& [folder, run] : runs_) add_missed(folder, run, fs::file_time_type::max());
        pass_on(/*last=*/true);
        return 0;
      }
      // Of attempts that began meanwhile: all lines.
      add_files(std::nullopt, /*with_missed=*/true);
    }
    return say_that_there_are_none();
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
    const auto is_here = [&](const NodeView& node) {
      const auto is_of_node = [&](const Look& look) {
        return look.now.host == node.host && look.now.launcher_pid == node.launcher_pid;
      };
      return std::any_of(looks_.looks().begin(), looks_.looks().end(), is_of_node);
    };
    for (const Look& look : looks_.looks()) {
      for (const NodeView& node : look.now.others) {
        if (is_here(node)) continue;
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

  bool waits_for_workers() const {
    return looks_.looks().empty() ||
           std::any_of(looks_.looks().begin(), looks_.looks().end(),
                       [](const Look& look) { return look.now.ranks.empty(); });
  }

  std::string prefix_of(const JobSnapshot& job, int rank) const {
    if (several_jobs_) return fmt::format("[{}, {}]: ", job.launcher_pid, rank);
    return job.world_size > 1 && !command_.rank ? fmt::format("[{}]: ", rank) : "";
  }

  bool are_several_jobs() const {
    const auto& looks = looks_.looks();
    return std::any_of(looks.begin(), looks.end(), [&](const Look& look) {
      const JobSnapshot& first = looks.front().now;
      // Launchers that nobody has looked at before do not know of each other yet.
      const bool same_store =
          first.master.empty() || look.now.master.empty() || first.master == look.now.master;
      return look.now.run_id != first.run_id || !(same_store || shows(first, look.now));
    });
  }

  void add_files(std::optional<int> lines, bool with_missed) {
    several_jobs_ = several_jobs_ || are_several_jobs();  // Lines keep their shape when one ends.
    for (const Look& look : looks_.looks()) {
      if (!look.now.log_dir.empty()) add_run(look.now, with_missed);
      for (const RankSnapshot& rank : look.now.ranks) {
        for (const std::string& path : {rank.stdout_file, rank.stderr_file}) {
          add_file(path, look.now, rank.rank, lines);
        }
      }
    }
  }

  void add_run(const JobSnapshot& job, bool with_missed) {
    const fs::path folder = fs::path(job.log_dir).parent_path();
    FollowedRun& run = runs_[folder];
    run.last = job;
    std::error_code gone;
    const fs::file_time_type now = fs::last_write_time(job.log_dir, gone);
    if (with_missed && !gone) add_missed(folder, run, now);
    for (const auto& [made, attempt] : attempt_folders(folder)) {
      if (made <= now) run.known.insert(attempt);
    }
  }

  // Their ranks are told by nobody any more: those of the last look, as a static job keeps them.
  void add_missed(const fs::path& folder, FollowedRun& run, fs::file_time_type until) {
    for (const auto& [made, attempt] : attempt_folders(folder)) {
      if (made > until || attempt == run.last.log_dir || !run.known.insert(attempt).second)
        continue;
      std::error_code gone;
      for (int i = 0; fs::is_directory(attempt / std::to_string(i), gone); ++i) {
        for (const char* name : {"stdout.log", "stderr.log"}) {
          const fs::path file = attempt / std::to_string(i) / name;
          if (!fs::exists(file, gone)) continue;
          add_file(file.string(), run.last, run.last.first_rank + i, std::nullopt);
        }
      }
    }
  }

  void add_file(const std::string& path, const JobSnapshot& job, int rank,
                std::optional<int> lines) {
    if (path.empty() || (command_.rank && rank != *command_.rank)) return;
    if (paths_.insert(path).second) files_.emplace_back(path, prefix_of(job, rank), lines);
  }

  bool pass_on(bool last) {
    return std::all_of(files_.begin(), files_.end(),
                       [last](ReadLog& file) { return file.pass_on(last); });
  }

  int say_that_there_are_none() const {
    std::fputs(waits_for_workers() ? "ddprun logs: the job has not started workers yet\n"
               : command_.rank
                   ? "ddprun logs: no rank of this number writes log files here\n"
                   : "ddprun logs: the job writes to its console alone; start it with --tee 3 for "
                     "files as well, or with --redirects 3\n",
               stderr);
    return 1;
  }

  WatchCommand command_;
  FoundLooks looks_;
  bool several_jobs_ = false;
  std::map<fs::path, FollowedRun> runs_;  // By its folder.
  std::set<std::string> paths_;           // Of `files_`.
  std::vector<ReadLog> files_;            // As their attempts began.
};

}  // namespace

int run_logs(const WatchCommand& command) { return Logs(command).run(); }

}  // namespace ddprun::launcher
