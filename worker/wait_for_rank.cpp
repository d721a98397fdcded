// The other end of launcher/workers/spare_pool.h.
#include "worker/wait_for_rank.h"

#include <fcntl.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "rendezvous/spare_channel.h"
#include "rendezvous/unique_fd.h"
#include "worker/worker_env.h"

namespace ddprun::worker {
namespace {

// -1: this process is no spare.
int spare_descriptor() {
  const std::string text = environment_variable(rendezvous::spare_variable).value_or("");
  int fd = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fd);
  return error == std::errc() && end == text.data() + text.size() ? fd : -1;
}

[[noreturn]] void throw_lost(const std::string& what) {
  throw WorkerEnvError("this process is a spare of ddprun, and " + what +
                       ": it was not needed, or a program in between has closed descriptor " +
                       std::to_string(spare_descriptor()) + " (" + rendezvous::spare_variable +
                       ")");
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

// Best effort, as for workers that the launcher starts with them: without them it tells who died
// first by when it heard of the deaths.
void take_death_marks(const std::string& text) {
  const auto set = rendezvous::read_death_marks(text);
  if (!set || set->marks.empty()) return;
  std::vector<sembuf> operations;
  for (const auto& mark : set->marks) {
    operations.push_back({mark.semaphore, mark.value, SEM_UNDO});
  }
  ::semop(set->id, operations.data(), operations.size());
}

}  // namespace

bool is_spare() { return spare_descriptor() >= 0; }

void wait_for_rank() {
  if (!is_spare()) return;
  rendezvous::UniqueFd channel(spare_descriptor());
  ::fcntl(channel.get(), F_SETFD, FD_CLOEXEC);
  const char ready = rendezvous::gives_rank_back;
  while (::send(channel.get(), &ready, 1, MSG_NOSIGNAL) != 1) {
    if (errno != EINTR) throw_lost(std::string("cannot say so: ") + std::strerror(errno));
  }
  for (const auto& [name, value] : read_environment(channel.get())) {
    if (name == rendezvous::death_marks_variable) {
      take_death_marks(value);
    } else {
      ::setenv(name.c_str(), value.c_str(), /*replace=*/1);
    }
  }
  ::unsetenv(rendezvous::spare_variable);
  // This worker may be given another rank, and a child of it has nothing to say there.
  if (environment_variable(rendezvous::rank_variable).value_or("") ==
      std::to_string(channel.get())) {
    channel.release();
  }
}

}  // namespace ddprun::worker
