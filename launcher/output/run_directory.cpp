// Folders that are made late, may be gone early, and must not cost the job its report: nothing here
// throws but make_attempt() and make_spare().
#include "launcher/output/run_directory.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "rendezvous/random_id.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
constexpr const char* null_device = "/dev/null";

[[noreturn]] void throw_errno(const std::string& what, const std::string& path) {
  throw std::system_error(errno, std::generic_category(), fmt::format("{} {}", what, path));
}

// A run id may be anything; a directory's name may not.
std::string file_name(const std::string& run_id) {
  // A name has at most 255 bytes on Linux's file systems, and others stand beside it.
  std::string name = run_id.substr(0, 100);
  for (char& c : name) {
    if (c == '/' || c == '\0') c = '_';
  }
  return name == "." || name == ".." || name.empty() ? "run" : name;
}

// Of the folder itself, and not of what a link leads to; nobody's if there is none.
std::optional<uid_t> owner_of_folder(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return std::nullopt;
  return status.st_uid;
}

// Folders can still be made there, as a tmpfs allows, and no error file be written.
bool is_full(const TemporaryPlace& place) {
  struct statvfs status {};
  return ::statvfs(place.path.c_str(), &status) == 0 && status.f_blocks > 0 && status.f_bavail == 0;
}

// A worker that was stopped while it wrote one leaves its temporary file, error.json.PID.tmp.
bool is_error_file(const fs::path& path) {
  return path.filename().string().starts_with("error.json");
}

}  // namespace

// The current folder is the last, for containers whose root can only be read.
std::vector<TemporaryPlace> temporary_places() {
  std::vector<TemporaryPlace> places;
  // Whole: workers get paths in it, and may go to another folder before they open them.
  const auto whole = [](const fs::path& path) {
    std::error_code gone;
    const fs::path result = fs::absolute(path, gone);
    return (gone ? path : result).string();
  };
  for (const char* name : {"TMPDIR", "TEMP", "TMP"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    places.push_back({whole(value), fmt::format("{}={}", name, value)});
  }
  for (const char* path : {"/tmp", "/var/tmp", "/usr/tmp"}) places.push_back({path, path});
  std::error_code gone;
  if (const fs::path here = fs::current_path(gone); !gone) places.push_back({here, "this folder"});
  return places;
}

std::string log_dir_problem(const std::string& log_dir) {
  std::error_code error;
  fs::create_directories(log_dir, error);
  if (error) return "cannot make that folder: " + error.message();
  std::string probe = log_dir + "/.ddprun_XXXXXX";
  if (mkdtemp(probe.data()) == nullptr) {
    return "cannot make folders in it: " + std::generic_category().message(errno);
  }
  rmdir(probe.c_str());
  return "";
}

RunDirectory::RunDirectory(std::string log_dir, std::string run_id, bool keep)
    : log_dir_(std::move(log_dir)),
      run_id_(std::move(run_id)),
      keep_(keep),
      temporary_(log_dir_.empty()) {}

RunDirectory::~RunDirectory() {
  if (root_.empty() || !kept_path().empty()) return;
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

std::string RunDirectory::make_attempt(int attempt, int workers, const Before& before_temporary) {
  if (log_dir_ == null_device) return "";
  if (root_.empty()) {
    root_ = make_root(before_temporary);
    owner_ = owner_of_folder(root_);
  } else if (const auto owner = owner_of_folder(root_); !owner || owner != owner_) {
    // Jobs of weeks meet those who clean /tmp, where anybody may then take the name. It stays: it
    // was told to the user.
    remake_root();
    owner_ = owner_of_folder(root_);
  }
  const std::string name = fmt::format("{}/attempt_{}", root_, attempt);
  std::string dir = name;
  // Of one number there may be several: whoever comes back into a job whose node 0 was started
  // again counts from 0 once more, and the earlier ones' files are not to be lost.
  int made = mkdir(dir.c_str(), 0777);
  for (int again = 2; made != 0 && errno == EEXIST; ++again) {
    dir = fmt::format("{}.{}", name, again);
    made = mkdir(dir.c_str(), 0777);
  }
  if (made != 0) throw_errno("cannot make the directory", dir);
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    const std::string own = fmt::format("{}/{}", dir, local_rank);
    if (mkdir(own.c_str(), 0777) != 0) throw_errno("cannot make the directory", own);
  }
  return dir;
}

std::string RunDirectory::make_spare(int place) const {
  if (root_.empty()) return "";
  const std::string dir = fmt::format("{}/spare_{}", root_, place);
  if (mkdir(dir.c_str(), 0777) != 0 && errno != EEXIST) {
    throw_errno("cannot make the directory", dir);
  }
  return dir;
}

std::string RunDirectory::make_root(const Before& before_temporary) const {
  if (temporary_) return make_temporary_root(before_temporary);
  std::error_code error;
  fs::create_directories(log_dir_, error);
  if (error) throw std::system_error(error, "cannot make the log directory " + log_dir_);
  std::string path = fmt::format("{}/{}_XXXXXX", log_dir_, file_name(run_id_));
  if (mkdtemp(path.data()) == nullptr) throw_errno("cannot make a directory in", log_dir_);
  return path;
}

// With a name of our own: mkdtemp() would tell its own too late.
std::string RunDirectory::make_temporary_root(const Before& before_temporary) const {
  std::string refusals;
  const auto refuse = [&refusals](const TemporaryPlace& place, int error) {
    refusals += fmt::format("{}{} ({})", refusals.empty() ? "cannot make a directory in " : ", ",
                            place.name, std::generic_category().message(error));
  };
  const auto make = [&](const TemporaryPlace& place) {
    std::string path =
        fmt::format("{}/ddprun_{}_{}", place.path, file_name(run_id_), rendezvous::random_id(8));
    if (before_temporary) before_temporary(path);
    if (mkdir(path.c_str(), 0700) != 0) return std::string();
    if (!refusals.empty()) spdlog::warn("{}: error files go to {}", refusals, place.path);
    return path;
  };
  const std::vector<TemporaryPlace> places = temporary_places();
  for (const TemporaryPlace& place : places) {
    const bool full = is_full(place);
    if (std::string path = full ? "" : make(place); !path.empty()) return path;
    refuse(place, full ? ENOSPC : errno);
  }
  // Most workers write nothing there.
  for (const TemporaryPlace& place : places) {
    if (std::string path = is_full(place) ? make(place) : ""; !path.empty()) return path;
  }
  throw std::runtime_error(refusals + ": set TMPDIR or --log-dir to a folder that can be written");
}

void RunDirectory::remake_root() const {
  std::error_code error;
  fs::create_directories(fs::path(root_).parent_path(), error);
  // Not create_directories(): were it there by now, it would be somebody else's.
  if (mkdir(root_.c_str(), 0700) != 0) {
    throw_errno("the run's directory was removed, and cannot be made again:", root_);
  }
  spdlog::warn("the run's directory {} was removed while the job ran; it is made again", root_);
}

std::string RunDirectory::kept_path() const {
  if (root_.empty()) return "";
  if (!temporary_ || keep_) return root_;
  return keep_after_failure_ != Keep::Nothing && holds_files() ? root_ : "";
}

void remove_after_kill(const std::string& root, fs::file_time_type killed) {
  // Not a range-for: its ++ throws, and folders may vanish, or turn unreadable, while we look.
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_symlink(unknown)) continue;
    if (entry->is_directory(unknown)) {
      remove_after_kill(entry->path().string(), killed);
    } else if (is_error_file(entry->path()) && entry->last_write_time(unknown) >= killed) {
      fs::remove(entry->path(), unknown);
    }
  }
  ::rmdir(root.c_str());
}

// What cannot be looked into may hold a file: then it stays, and the user hears of it.
bool RunDirectory::holds_files() const {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(root_, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_directory(unknown)) continue;
    if (keep_after_failure_ == Keep::All || !is_error_file(entry->path())) return true;
  }
  return error && error != std::errc::no_such_file_or_directory;
}

}  // namespace ddprun::launcher
