// Files are looked at again after a pause: they may lie on file systems that tell of no change, and
// a quarter of a second is soon enough for a person.
#include "launcher/watch/follow_logs.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/watch/found_looks.h"
#include "launcher/watch/job_lines.h"
#include "launcher/watch/rotated_log.h"
#include "launcher/watch/status_text.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds logs_answer_limit{2'000};
constexpr int pause_ms = 250;
constexpr int looks_per_question = 4;  // The launcher is asked once in so many pauses.
constexpr int looks_per_state = 8;     // A progress bar is shown where it stands as seldom.
constexpr int lines_of_follow = 10;
// Files of attempts that are over are read on for a moment, since a launcher's threads may still
// write to a slow disk; of so many at most, for each is a descriptor.
constexpr int questions_until_closed = 2;
constexpr std::size_t over_files_max = 16;

constexpr const char* how_to_have_files =
    "start it with --tee 3 for files as well, or with --redirects 3";

// A launcher's run: an attempt may begin and end between two looks at it, and leaves its folder.
struct FollowedRun {
  JobSnapshot last;
  std::set<fs::path> known;  // Folders of attempts that are read, or were over at the first look.
};

// What one rank's stream has written in one attempt.
struct FollowedLog {
  RotatedLog log;
  fs::path attempt;        // Its folder.
  int questions_over = 0;  // At so many its attempt was over.
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
      if (!show_others() && files_.empty()) return say_that_there_are_none();
      tell_of_consoles();
      return pass_on_rest() ? 0 : 1;
    }
    tell_of_others();
    if (!files_.empty()) tell_of_consoles();
    if (files_.empty() && waits_for_workers()) {
      std::fputs("ddprun logs: no workers yet; what they write follows\n", stderr);
    }
    return follow() ? 0 : say_that_there_are_none();
  }

 private:
  // Until the job ends, or nobody reads any more. False: there is nothing to follow.
  bool follow() {
    for (int i = 0; !paths_.empty() || waits_for_workers(); ++i) {
      if (!pass_on_new(/*states=*/i % looks_per_state == 0)) return true;
      ::poll(nullptr, 0, pause_ms);
      if (i % looks_per_question != looks_per_question - 1) continue;
      looks_.look(logs_answer_limit);
      // Of attempts that began meanwhile: all lines.
      add_files(std::nullopt, /*with_missed=*/true);
      if (!looks_.found()) {
        pass_on_rest();
        return true;
      }
      if (!close_over()) return true;
    }
    return false;
  }

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
      const auto lines = other_log_lines(looks_, job, command_.rank, command_.lines.value_or(0));
      if (lines.empty()) continue;
      any = true;
      if (several_jobs_) std::printf("%s\n", headline(*job.snapshot).c_str());
      for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    }
    return any;
  }

  void tell_of_others() const {
    const auto is_here = [&](const NodeView& node) {
      const auto is_of_node = [&](const Look& look) { return is_same_launcher(look.now, node); };
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

  // Else what the others write would pass for all.
  void tell_of_consoles() const {
    if (looks_.is_remote() || command_.rank) return;
    const auto writes_none = [](const RankSnapshot& rank) {
      return rank.stdout_file.empty() && rank.stderr_file.empty();
    };
    for (const Look& look : looks_.looks()) {
      const auto& ranks = look.now.ranks;
      if (ranks.empty() || !std::all_of(ranks.begin(), ranks.end(), writes_none)) continue;
      std::fprintf(stderr, "ddprun logs: %s writes to its console alone; %s\n",
                   headline(look.now).c_str(), how_to_have_files);
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
          add_file(path, look.now.log_dir, look.now, rank.rank, lines);
        }
      }
    }
    for (auto run = runs_.begin(); run != runs_.end();) {
      if (!has_ended(run->first)) {
        ++run;
        continue;
      }
      add_missed(run->first, run->second, fs::file_time_type::max());
      run = runs_.erase(run);
    }
  }

  // Its launcher. One that is silent may be any of those that were not seen.
  bool has_ended(const fs::path& run) const {
    const auto is_of_run = [&](const Look& look) {
      return fs::path(look.now.log_dir).parent_path() == run;
    };
    return looks_.notes().empty() &&
           std::none_of(looks_.looks().begin(), looks_.looks().end(), is_of_run);
  }

  bool is_over(const fs::path& attempt) const {
    const auto is_followed = [&](const Look& look) {
      const fs::path now = look.now.log_dir;
      return now.parent_path() == attempt.parent_path() && now != attempt;
    };
    return has_ended(attempt.parent_path()) ||
           std::any_of(looks_.looks().begin(), looks_.looks().end(), is_followed);
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
          add_file(file.string(), attempt, run.last, run.last.first_rank + i, std::nullopt);
        }
      }
    }
  }

  void add_file(const std::string& path, const fs::path& attempt, const JobSnapshot& job, int rank,
                std::optional<int> lines) {
    if (path.empty() || (command_.rank && rank != *command_.rank)) return;
    if (!paths_.insert(path).second) return;
    files_.push_back({.log = {path, prefix_of(job, rank), lines}, .attempt = attempt});
  }

  // False, as of the next two: nobody reads any more.
  bool pass_on_new(bool states) {
    using Unfinished = RotatedLog::Unfinished;
    return std::all_of(files_.begin(), files_.end(), [&](FollowedLog& file) {
      return file.log.pass_on(states ? Unfinished::State : Unfinished::Nothing);
    });
  }

  bool pass_on_rest() {
    for (; !files_.empty(); files_.pop_front()) {
      if (!files_.front().log.pass_on(RotatedLog::Unfinished::All)) return false;
    }
    return true;
  }

  // Of many that began and ended since the last question, those that are closed at once are opened
  // one after the other.
  bool close_over() {
    std::size_t over = 0;
    for (FollowedLog& file : files_) {
      if (!is_over(file.attempt)) continue;
      ++file.questions_over;
      ++over;
    }
    for (auto file = files_.begin(); file != files_.end();) {
      const bool closes = file->questions_over >= questions_until_closed ||
                          (file->questions_over > 0 && over > over_files_max);
      if (!closes) {
        ++file;
        continue;
      }
      if (!file->log.pass_on(RotatedLog::Unfinished::All)) return false;
      file = files_.erase(file);
      --over;
    }
    return true;
  }

  int say_that_there_are_none() const {
    std::string why = "no rank of this number writes log files here";
    if (waits_for_workers()) {
      why = "the job has not started workers yet";
    } else if (!command_.rank) {
      why = std::string("the job writes to its console alone; ") + how_to_have_files;
    }
    std::fprintf(stderr, "ddprun logs: %s\n", why.c_str());
    return 1;
  }

  WatchCommand command_;
  FoundLooks looks_;
  bool several_jobs_ = false;
  std::map<fs::path, FollowedRun> runs_;  // By its folder.
  std::set<std::string> paths_;           // That are, or were, among `files_`.
  std::list<FollowedLog> files_;          // As their attempts began.
};

}  // namespace

int run_logs(const WatchCommand& command) { return Logs(command).run(); }

}  // namespace ddprun::launcher
