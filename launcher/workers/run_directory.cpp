// Folders are made when an attempt starts and removed by whoever is left: us, or the guard process.
#include "launcher/workers/run_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

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

}  // namespace

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

std::string RunDirectory::make_attempt(int attempt, int workers) {
  if (log_dir_ == null_device) return "";
  if (root_.empty()) {
    const char* tmp = std::getenv("TMPDIR");
    const std::string base = !temporary_ ? log_dir_ : tmp != nullptr && *tmp != '\0' ? tmp : "/tmp";
    if (!temporary_) {
      std::error_code error;
      fs::create_directories(base, error);
      if (error) throw std::system_error(error, "cannot make the log directory " + base);
    }
    std::string path =
        fmt::format("{}/{}{}_XXXXXX", base, temporary_ ? "ddprun_" : "", file_name(run_id_));
    if (mkdtemp(path.data()) == nullptr) throw_errno("cannot make a directory in", base);
    root_ = path;
  }
  const std::string dir = fmt::format("{}/attempt_{}", root_, attempt);
  if (mkdir(dir.c_str(), 0777) != 0) throw_errno("cannot make the directory", dir);
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    const std::string own = fmt::format("{}/{}", dir, local_rank);
    if (mkdir(own.c_str(), 0777) != 0) throw_errno("cannot make the directory", own);
  }
  return dir;
}

std::string RunDirectory::kept_path() const {
  if (root_.empty()) return "";
  if (!temporary_ || keep_) return root_;
  return keep_errors_ && holds_files() ? root_ : "";
}

void remove_empty_folders(const std::string& root) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (entry.is_directory(error) && !entry.is_symlink(error)) {
      remove_empty_folders(entry.path().string());
    }
  }
  ::rmdir(root.c_str());
}

bool RunDirectory::holds_files() const {
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(root_, error)) {
    if (!entry.is_directory(error)) return true;
  }
  return false;
}

}  // namespace ddprun::launcher
