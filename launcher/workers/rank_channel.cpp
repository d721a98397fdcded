// A socket pair and not two pipes: one number in the environment serves both directions, and send()
// can be told to raise no SIGPIPE.
#include "launcher/workers/rank_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "launcher/workers/start_error.h"
#include "rendezvous/contract/spare_channel.h"

namespace ddprun::launcher {

RankChannel make_rank_channel(int worker) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    const int number = errno;
    throw StartError("cannot start worker " + std::to_string(worker) +
                         ": no socket pair to give it a rank by: " + std::strerror(number),
                     number);
  }
  return {rendezvous::UniqueFd(ends[0]), rendezvous::UniqueFd(ends[1])};
}

std::string rank_message_for(const WorkerSpec& worker, const DeathMarks& marks) {
  rendezvous::Environment environment = worker.variables;
  if (marks.id >= 0 && !marks.operations.empty()) {
    rendezvous::DeathMarkSet set{marks.id, {}};
    for (const sembuf& operation : marks.operations) {
      set.marks.push_back({operation.sem_num, operation.sem_op});
    }
    environment.emplace_back(rendezvous::death_marks_variable, rendezvous::death_marks_text(set));
  }
  return rendezvous::rank_message(environment);
}

bool send_whole(int fd, const std::string& message) {
  const auto size = static_cast<ssize_t>(message.size());
  const ssize_t sent = ::send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0 && sent != size) errno = ENOBUFS;
  return sent == size;
}

}  // namespace ddprun::launcher
