// Opening without waiting, and looking before reading: what lies in a worker's folder is the
// worker's business, and the launcher has other workers to attend to.
#include "launcher/report/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

std::optional<RegularFile> read_regular_file(const std::string& path, std::size_t bytes_max) {
  // O_NONBLOCK: the open itself waits for a pipe's writer. For a regular file it means nothing.
  const rendezvous::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  RegularFile file;
  file.modified_ns = status.st_mtim.tv_sec * INT64_C(1'000'000'000) + status.st_mtim.tv_nsec;
  char buffer[16'384];
  while (file.content.size() < bytes_max) {
    const ssize_t count =
        ::read(fd.get(), buffer, std::min(sizeof buffer, bytes_max - file.content.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    file.content.append(buffer, static_cast<std::size_t>(count));
  }
  return file;
}

}  // namespace ddprun::launcher
