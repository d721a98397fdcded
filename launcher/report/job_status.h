// Where the job stands, in one line: when an attempt starts, and for who sends SIGUSR1 as to dd(1).
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

// As this node's agent sees it.
struct JobStatus {
  bool in_attempt = false;          // False: other nodes, or the coordinator, are waited for.
  std::chrono::milliseconds since;  // In the attempt, or waiting.
  std::chrono::milliseconds join_timeout;
  int attempt = 0;
  int node_rank = 0;
  int nodes = 1;
  int rank_base = 0;  // Rank of this node's first worker.
  int workers = 1;    // On this node.
  int world_size = 1;
  std::vector<int> pids;  // Of this node's workers that run.
  int spares = 0;         // As asked for with --spares.
  int spares_ready = 0;
};

std::string to_text(const JobStatus& status);

// What is said when a round starts on a node with `workers` of its workers; "" when it goes without
// saying: a job on one node that starts for the first time.
std::string round_text(const rendezvous::RoundStart& round, int workers, bool may_have_nodes);

}  // namespace ddprun::launcher
