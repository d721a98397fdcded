// The other end of launcher/workers/spare_pool.h.
#include "worker/wait_for_rank.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/unique_fd.h"
#include "worker/cpu/cpu_connect.h"
#include "worker/rank_environment.h"
#include "worker/worker_env.h"

namespace ddprun::worker {
namespace {

[[noreturn]] void throw_lost(const std::string& what) {
  throw WorkerEnvError("this process is a spare of ddprun, and " + what +
                       ": it was not needed, or a program in between has closed descriptor " +
                       std::to_string(descriptor_of(rendezvous::spare_variable)) + " (" +
                       rendezvous::spare_variable + ")");
}

// Until the launcher has said all.
rendezvous::Environment read_environment(int fd) {
  std::string message;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_lost(std::string("cannot hear of its rank: ") + std::strerror(errno));
    if (count == 0) throw_lost("the launcher has closed the connection without giving it a rank");
    message.append(buffer.data(), static_cast<std::size_t>(count));
    if (auto environment = rendezvous::read_rank_message(message)) return *environment;
  }
}

}  // namespace

bool is_spare() { return descriptor_of(rendezvous::spare_variable) >= 0; }

void wait_for_rank() {
  if (!is_spare()) return;
  rendezvous::UniqueFd channel(descriptor_of(rendezvous::spare_variable));
  ::fcntl(channel.get(), F_SETFD, FD_CLOEXEC);
  prepare_cpu_peers();
  const char ready = rendezvous::gives_rank_back;
  while (::send(channel.get(), &ready, 1, MSG_NOSIGNAL) != 1) {
    if (errno != EINTR) throw_lost(std::string("cannot say so: ") + std::strerror(errno));
  }
  take_environment(read_environment(channel.get()));
  ::unsetenv(rendezvous::spare_variable);
  // This worker may be given another rank, and a child of it has nothing to say there.
  if (descriptor_of(rendezvous::rank_variable) == channel.get()) channel.release();
}

}  // namespace ddprun::worker
