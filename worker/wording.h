// How programs on top of workers name this machine, ranks, and count things in messages: as ddprun
// itself.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/counted.h"
#include "rendezvous/host/host_name.h"

namespace ddprun::worker {

using rendezvous::counted;
using rendezvous::own_host_name;

struct CommunicatorOptions;

inline std::string rank_of_world(int rank, int world_size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(world_size);
}

// "rank 1, rank 3"
inline std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return text;
}

// "within 60 s (CommunicatorOptions::connect_timeout sets the limit)"
std::string within_limit(const CommunicatorOptions& options);

}  // namespace ddprun::worker
