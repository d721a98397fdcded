// execvp(3)'s search, done before the fork: a child that shares our memory must not allocate, and
// the options' error message wants the answer without a child.
#include "launcher/machine/find_program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ddprun::launcher {
namespace {

bool is_executable_file(const std::string& path, int& error_number) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    error_number = errno;
    return false;
  }
  if (!S_ISREG(status.st_mode) || ::access(path.c_str(), X_OK) != 0) {
    error_number = EACCES;
    return false;
  }
  return true;
}

}  // namespace

std::string search_path(const std::optional<std::string>& path) {
  return path.value_or("/bin:/usr/bin");
}

std::string find_program(const std::string& name, const std::string& search_path,
                         int& error_number) {
  error_number = ENOENT;
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) {
    return is_executable_file(name, error_number) ? name : "";
  }
  int worst = ENOENT;  // "Found but not executable" says more than "not found".
  for (std::size_t begin = 0; begin <= search_path.size();) {
    const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
    const std::string folder = search_path.substr(begin, end - begin);
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    int reason = 0;
    if (is_executable_file(path, reason)) return path;
    if (reason == EACCES) worst = EACCES;
    begin = end + 1;
  }
  error_number = worst;
  return "";
}

}  // namespace ddprun::launcher
