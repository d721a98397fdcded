// One sentence each, which the attempt and its plan must not say differently.
#include "launcher/attempt_choices.h"

#include "launcher/report/first_error.h"
#include "launcher/stall/nccl_ras.h"

namespace ddprun::launcher {

bool another_may_follow(const LaunchOptions& options, const rendezvous::RoundStart& round) {
  const bool elastic = options.backend == RendezvousBackend::C10d && options.nnodes_max > 1;
  return elastic || round.max_restarts > 0;
}

// Of a coordinator that does not say it at least: each restart has begun an attempt, and there may
// have been others, for nodes that came.
bool restart_left(const rendezvous::RoundStart& round) {
  return round.max_restarts > round.restarts_used.value_or(round.attempt);
}

// Whoever is gone is known by then: a process, also one that closes its connections long before it
// ends (Python's finalizers), and a node that fell silent, also where it was the coordinator's, and
// the next one has to miss the node's workers first. A worker that has lost a peer and hears
// nothing for so long has lost a connection alone, and nobody but itself can say so.
std::chrono::milliseconds peer_word_limit(const LaunchOptions& options) {
  const bool one_node = options.nnodes_max == 1;
  return cause_wait + (one_node ? std::chrono::milliseconds{0} : 2 * options.heartbeat_timeout);
}

std::optional<std::string> own_store_host(const LaunchOptions& options,
                                          const rendezvous::RoundStart& round) {
  if (!options.worker_store || round.group_world_size > 1) return std::nullopt;
  return options.local_addr.empty() ? "127.0.0.1" : options.local_addr;
}

bool asks_nccl_ras(const LaunchOptions& options, const EnvironmentLookup& environment) {
  return options.stall_watch && environment("NCCL_RAS_ENABLE").value_or("") != "0";
}

bool gives_ras_address(const LaunchOptions& options, const EnvironmentLookup& environment,
                       int gpus) {
  return gpus > 0 && asks_nccl_ras(options, environment) && !environment(ras_address_variable);
}

int workers_here(const LaunchOptions& options, const rendezvous::RoundStart& round) {
  return round.nproc > 0 ? round.nproc : options.nproc_per_node;
}

}  // namespace ddprun::launcher
