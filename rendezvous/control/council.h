// Who may decide that a job has a new coordinator: the first agents of a round, and where they
// listen.
//
// All agents of a small job, and the first council_max of a large one: votes must be few enough to
// be asked in one go, and the list short enough for every `round` line.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

struct Seat {
  std::string node_id;
  int group_rank = 0;
  std::string host;     // For messages only.
  std::string address;  // With `port`: where this agent answers asks, and may take over.
  int port = 0;

  friend bool operator==(const Seat&, const Seat&) = default;
};

using Council = std::vector<Seat>;  // By group rank, the lowest first.

constexpr std::size_t council_max = 15;

// More than half of the council: two such sets always share a member. An empty council agrees.
bool has_majority(const Council& council, const std::function<bool(const std::string& id)>& agrees);

}  // namespace ddprun::rendezvous
