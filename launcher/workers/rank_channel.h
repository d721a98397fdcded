// The launcher's words on a worker's channel (rendezvous/contract/spare_channel.h), for spares and
// for workers that may be given another rank.
#pragma once

#include <string>

#include "launcher/processes/death_order.h"
#include "launcher/workers/worker_spec.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

struct RankChannel {
  rendezvous::UniqueFd ours;
  rendezvous::UniqueFd theirs;
};

// Throws StartError, which names `worker`, when there is no socket left.
RankChannel make_rank_channel(int worker);

// What a worker of this spec would have been started with, less what a process that runs has
// already.
std::string rank_message_for(const WorkerSpec& worker, const DeathMarks& marks);

// All of it at once: it fits into any socket's buffer, and a process whose buffer is full has not
// done what it should. Sets errno when it returns false.
bool send_whole(int fd, const std::string& message);

}  // namespace ddprun::launcher
