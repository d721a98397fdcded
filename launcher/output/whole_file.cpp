// Temporary name, then rename; and what must not be replaced that way: devices, pipes, the file
// behind /dev/stdout.
#include "launcher/output/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "command_line/write_all.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using rendezvous::UniqueFd;

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Whether this is a link that somebody else has put into a folder where anybody may, as /tmp: the
// kernel lets no open() follow it (protected_symlinks), but does not see who reads a link and then
// renames.
bool is_strangers_link(const std::string& path) {
  struct stat link {
  }, folder{};
  if (::lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return false;
  if (::stat(folder_of(path).c_str(), &folder) != 0) return true;
  const bool anybodys = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
  return anybodys && link.st_uid != ::geteuid() && link.st_uid != folder.st_uid;
}

constexpr const char* strangers_link =
    "it is another user's link, in a folder that anybody may write to";

// The file that a link leads to: it is replaced, not the link.
std::string target_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target.string();
}

bool is_special(const std::string& path) {
  // /dev/stdout may lead to a regular file that holds the workers' output: not ours to replace.
  std::error_code gone;  // The current folder, in which no device is then.
  const std::string name = fs::absolute(path, gone).lexically_normal().string();
  if (name.rfind("/proc/", 0) == 0) return true;
  if (name.rfind("/dev/", 0) == 0 && name.rfind("/dev/shm/", 0) != 0) return true;
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

// mkostemp's 0600 would keep other users out. Not umask(2), which tells the mask only to who sets
// another one: a worker that is started at that moment would keep it.
mode_t usual_mode() {
  mode_t mask = 022;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Umask:", 0) == 0) mask = std::strtoul(line.c_str() + 6, nullptr, 8);
  }
  return 0666 & ~mask;
}

// A pipe that nobody reads must not hold the launcher up.
std::string write_special(const std::string& path, std::string_view content) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) return std::strerror(errno);
  const int error = command_line::write_all(fd.get(), content).error;
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

std::string why_not_writable(const std::string& path) {
  if (path.empty() || path.back() == '/') return "it is no file's name";
  if (path == "-") return dash_is_no_file;
  std::error_code error;
  if (fs::is_directory(path, error)) return "it is a folder";
  if (is_strangers_link(path)) return strangers_link;
  if (is_special(path)) return ::access(path.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
  const std::string folder = folder_of(target_of(path));
  if (!fs::is_directory(folder, error)) return "there is no folder " + folder;
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return "no file can be made in " + folder + ": " + std::strerror(errno);
  }
  return "";
}

std::string write_whole_file(const std::string& path, std::string_view content) {
  if (is_special(path)) return write_special(path, content);
  if (is_strangers_link(path)) return strangers_link;
  const std::string target = target_of(path);
  std::string temporary = target + ".XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return std::string("cannot make a file beside it: ") + std::strerror(errno);
  int error = command_line::write_all(fd.get(), content).error;
  if (error == 0 && ::fchmod(fd.get(), usual_mode()) != 0) error = errno;
  if (::close(fd.release()) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (error == 0) return "";
  ::unlink(temporary.c_str());
  return std::strerror(error);
}

}  // namespace ddprun::launcher
