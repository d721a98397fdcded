// Who may decide that a job has a new coordinator: the first agents of a round, and where they
// listen.
//
// All agents of a small job, and the first council_max of a large one: votes must be few enough to
// be asked in one go, and the list short enough for every `round` line.
// A core: no sockets, threads or clock.
#pragma once

#include <compare>
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
  bool founder = true;  // Of the first attempt; or not known, and then its loss is the job's.

  friend bool operator==(const Seat&, const Seat&) = default;
};

using Council = std::vector<Seat>;  // By group rank, the lowest first.

constexpr std::size_t council_max = 15;

// What it says beside the nodes' votes who goes on: an arbiter (rendezvous/arbiter/arbiter.h) gives
// each round away once.
enum class Arbitration {
  None,    // Nothing: a majority is needed.
  Halves,  // Of a council of 2, 4, ... nodes half is enough for who has the arbiter's word.
  Anyone,  // One node is enough with the arbiter's word, and nothing but all without it.
};

// How many of a council may choose a coordinator alone, and how many with the arbiter's word. Who
// chose alone and who chose with the word always share a node, and so do two that chose alone;
// two that chose with the word share the word.
std::size_t enough_alone(const Council& council, Arbitration arbitration);
std::size_t enough_with_word(const Council& council, Arbitration arbitration);

std::size_t count_in(const Council& council, const std::function<bool(const std::string& id)>& is);

// Which round the word is about: in a term there is one coordinator, so no two rounds share both.
struct RoundName {
  int term = 0;
  int attempt = -1;

  friend auto operator<=>(const RoundName&, const RoundName&) = default;
};

}  // namespace ddprun::rendezvous
