// Questions to the kernel that have one line for an answer; CPUs and GPUs are cpu_topology.cpp's.
#include "launcher/machine/this_machine.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <system_error>

#include "launcher/machine/cpu_topology.h"
#include "rendezvous/host/control_group.h"

namespace ddprun::launcher {

int usable_cpus() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

int cpus_at_once() {
  return rendezvous::cpus_at_once(rendezvous::read_control_group(""), usable_cpus());
}

int free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  const bool bound = listener >= 0 &&
                     bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  if (listener >= 0) close(listener);
  if (!bound) throw std::system_error(error, std::generic_category(), "cannot find a free port");
  return ntohs(address.sin_port);
}

int terminal_columns() {
  constexpr int usual_columns = 80;  // Of a terminal that does not say.
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0) return 0;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return usual_columns;
  return size.ws_col;
}

// poll() says of each number whether it is open, in one call: to ask for each takes half a
// millisecond, and /proc/self/fd would need a descriptor itself.
OpenFiles open_files() {
  constexpr std::size_t looked_at_max = 4'096;  // Whoever has so many does not run out.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return {looked_at_max, looked_at_max};
  const auto limit = static_cast<std::size_t>(files.rlim_cur);
  std::vector<pollfd> asked(std::min(limit, looked_at_max));
  for (std::size_t fd = 0; fd < asked.size(); ++fd) asked[fd].fd = static_cast<int>(fd);
  if (::poll(asked.data(), asked.size(), 0) < 0) return {limit, limit};
  const auto used = std::count_if(asked.begin(), asked.end(), [](const pollfd& file) {
    return (file.revents & POLLNVAL) == 0;
  });
  return {limit - static_cast<std::size_t>(used), limit};
}

std::vector<WorkerCpus> worker_places(NumaBinding binding, int workers) {
  const CpuTopology topology =
      read_cpu_topology("", allowed_cpus(), environment_variable("CUDA_VISIBLE_DEVICES"));
  return place_workers(topology, binding, workers);
}

}  // namespace ddprun::launcher
