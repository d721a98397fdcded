// Plain system calls: these files are read some hundred times a second while a job is watched.
#include "launcher/processes/process_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

std::string read_process_file(const std::string& path) {
  const rendezvous::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file ? read_to_end(file.get()) : "";
}

std::string read_to_end(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = ::read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace ddprun::launcher
