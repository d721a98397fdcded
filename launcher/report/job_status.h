// Where the job stands, in one line, for who sends SIGUSR1 as to dd(1).
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <string>
#include <vector>

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
};

std::string to_text(const JobStatus& status);

}  // namespace ddprun::launcher
