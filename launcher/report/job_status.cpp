// The pids come last: a node has a few at most, but where it has many they are what may be cut off.
#include "launcher/report/job_status.h"

#include <fmt/format.h>

#include "rendezvous/counted.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

std::string ranks_text(int first, int count) {
  return count == 1 ? fmt::format("rank {}", first)
                    : fmt::format("ranks {} to {}", first, first + count - 1);
}

}  // namespace

std::string to_text(const JobStatus& status) {
  const std::string since = rendezvous::time_text(status.since);
  if (!status.in_attempt) {
    return fmt::format("waiting for the other nodes for {}, at most {} in all", since,
                       rendezvous::time_text(status.join_timeout));
  }
  std::string text = fmt::format("attempt {} for {}: ", status.attempt, since);
  if (status.nodes > 1) text += fmt::format("node {} of {}, ", status.node_rank, status.nodes);
  text += ranks_text(status.rank_base, status.workers);
  text += fmt::format(" of {}; {} of {} running here", status.world_size, status.pids.size(),
                      rendezvous::counted(status.workers, "worker"));
  if (status.spares > 0) {
    text += fmt::format(", {} of {} ready", status.spares_ready,
                        rendezvous::counted(status.spares, "spare"));
  }
  if (!status.pids.empty()) text += fmt::format(": pid {}", fmt::join(status.pids, " "));
  return text;
}

std::string round_text(const rendezvous::RoundStart& round, int workers, bool may_have_nodes) {
  const std::string all = rendezvous::counted(round.world_size, "worker");
  if (round.group_world_size > 1) {
    return fmt::format("attempt {}: {} nodes, {}; this is node {} with {}", round.attempt,
                       round.group_world_size, all, round.group_rank,
                       ranks_text(round.rank_base, workers));
  }
  if (round.attempt == 0 && !may_have_nodes) return "";
  return fmt::format("attempt {}: {}", round.attempt, all);
}

}  // namespace ddprun::launcher
