// Tells "cannot be read now" from "is no file": a checkpoint is put aside only for what it holds.
#include "trainer/formats/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "command_line/write_all.h"
#include "worker/unique_fd.h"

namespace ddprun::trainer {
namespace {

// Returns the number of the error, or 0.
int read_all(int fd, std::string& bytes) {
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::read(fd, bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  bytes.resize(filled);
  return 0;
}

// What a file is called until it is whole.
std::string unfinished_name(const std::filesystem::path& path) { return path.string() + ".new"; }

// Others may write in some folders, as in /tmp, and guess the name: a link there is not followed.
worker::UniqueFd open_unfinished(const std::string& name, int also = 0) {
  return worker::UniqueFd(
      ::open(name.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | also, 0666));
}

}  // namespace

std::string read_whole_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  // Without O_NONBLOCK a pipe would be waited for, where only a file can be meant.
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    throw FileAccessError(fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
  }
  struct stat status {};
  std::string bytes;
  int error = 0;
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  if (regular) {
    bytes.resize(static_cast<std::size_t>(status.st_size));
    error = read_all(fd, bytes);
  }
  ::close(fd);
  if (!regular) throw FileError(fmt::format("{}: is not a regular file", name));
  if (error != 0) {
    throw FileAccessError(fmt::format("{}: cannot be read: {}", name, std::strerror(error)));
  }
  return bytes;
}

void write_whole_file(const std::filesystem::path& path, std::string_view content) {
  const std::string unfinished = unfinished_name(path);
  worker::UniqueFd fd = open_unfinished(unfinished, O_TRUNC);
  int cause = fd ? command_line::write_all(fd.get(), content).error : errno;
  if (fd && ::close(fd.release()) != 0 && cause == 0) cause = errno;
  if (cause != 0) {
    throw FileAccessError(
        fmt::format("{}: cannot be written: {}", unfinished, std::strerror(cause)));
  }
  std::error_code error;
  std::filesystem::rename(unfinished, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    throw FileAccessError(
        fmt::format("{}: cannot be renamed to {}: {}", unfinished, path.string(), error.message()));
  }
}

void require_place_for_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw FileAccessError(fmt::format("{}: is a folder", path.string()));
  }
  const std::string unfinished = unfinished_name(path);
  const bool of_another = std::filesystem::exists(unfinished, ignored);  // Who is writing it.
  if (!open_unfinished(unfinished)) {
    throw FileAccessError(fmt::format("{}: cannot be made: {}", unfinished, std::strerror(errno)));
  }
  if (!of_another) std::filesystem::remove(unfinished, ignored);
}

}  // namespace ddprun::trainer
