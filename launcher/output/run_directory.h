// Where one run keeps its log and error files:
//
//   <log dir>/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json}
//   <log dir>/<run id>_<random>/attempt_<n>.2/...  when attempt n comes a second time
//   <log dir>/<run id>_<random>/spare_<place>/{stdout.log,stderr.log}
//
// torchrun's layout, and the output of spares until they have a rank. Without a log dir it is made
// below $TMPDIR, or where that cannot be written in /tmp, /var/tmp or the current folder, and goes
// away with the run, unless it holds something that somebody may want to read.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

// Makes the folder if it is not there, and tries whether this user can make others in it. Returns
// what is in the way, "" if nothing.
std::string log_dir_problem(const std::string& log_dir);

struct TemporaryPlace {
  std::string path;
  std::string name;  // For people: with the variable that says so.
};

// Where Python's tempfile looks, and so torchrun: the first that can be written is taken.
std::vector<TemporaryPlace> temporary_places();

class RunDirectory {
 public:
  using Before = std::function<void(const std::string& path)>;

  // `log_dir`: "" = temporary; the null device = no files at all. `keep`: the user asked for files
  // (--redirects, --tee), so they stay. Touches nothing yet.
  RunDirectory(std::string log_dir, std::string run_id, bool keep);
  ~RunDirectory();  // Removes a temporary directory without files to keep.

  // Makes the directories of one attempt and returns its path, or "" when there are no files at
  // all; also when the run's own was removed meanwhile. `before_temporary` hears the path of one
  // below $TMPDIR before there is anything there: who is killed between the two leaves nothing that
  // nobody removes. Throws std::runtime_error, naming the path.
  std::string make_attempt(int attempt, int workers, const Before& before_temporary = {});

  // The folder of a place's spare (local_places.h), made if it is not there, beside the attempts'
  // after the first of these; "" when there are no files. Throws as make_attempt().
  std::string make_spare(int place) const;

  // The path to tell the user; "" when nothing stays behind.
  std::string kept_path() const;

  // Made by this run, below $TMPDIR; "" when files go elsewhere or nothing is there yet.
  std::string temporary_path() const { return temporary_ && !keep_ ? root_ : ""; }

  // After a failure, what is in a temporary directory stays readable: all of it, or only if it
  // holds more than error files, which were told.
  enum class Keep { Nothing, WhatIsNotTold, All };
  void keep_files(Keep keep) { keep_after_failure_ = keep; }

 private:
  std::string make_root(const Before& before_temporary) const;
  std::string make_temporary_root(const Before& before_temporary) const;
  void remake_root() const;
  bool holds_files() const;

  std::string log_dir_;
  std::string run_id_;
  bool keep_;
  Keep keep_after_failure_ = Keep::Nothing;
  bool temporary_;
  std::string root_;            // "" until the first attempt.
  std::optional<uid_t> owner_;  // Of it: an account of a file server need not be that of ours.
};

// What becomes of a run's folder when its launcher was killed: error files that were written after
// `killed` go, and folders that hold nothing then. An older one may say why, and was told to
// nobody.
void remove_after_kill(const std::string& root, std::filesystem::file_time_type killed);

}  // namespace ddprun::launcher
