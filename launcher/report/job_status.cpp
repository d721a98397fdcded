// The pids come last: a node has a few at most, but where it has many they are what may be cut off.
#include "launcher/report/job_status.h"

#include <fmt/format.h>

#include "rendezvous/counted.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {

std::string to_text(const JobStatus& status) {
  const std::string since = rendezvous::time_text(status.since);
  if (!status.in_attempt) {
    return fmt::format("waiting for the other nodes for {}, at most {} in all", since,
                       rendezvous::time_text(status.join_timeout));
  }
  std::string text = fmt::format("attempt {} for {}: ", status.attempt, since);
  if (status.nodes > 1) text += fmt::format("node {} of {}, ", status.node_rank, status.nodes);
  text += status.workers == 1 ? fmt::format("rank {}", status.rank_base)
                              : fmt::format("ranks {} to {}", status.rank_base,
                                            status.rank_base + status.workers - 1);
  text += fmt::format(" of {}; {} of {} running here", status.world_size, status.pids.size(),
                      rendezvous::counted(status.workers, "worker"));
  if (!status.pids.empty()) text += fmt::format(": pid {}", fmt::join(status.pids, " "));
  return text;
}

}  // namespace ddprun::launcher
