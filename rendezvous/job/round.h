// Who takes part in a round, and with which ranks: decided without a socket or a clock.
//
// `static` and `c10d` differ only in the limits. Static: exactly N nodes, each with the rank it was
// given. Elastic (c10d): MIN to MAX nodes, ranks in join order; once MIN have joined, a last call
// waits for more. A round that re-forms after a failure has no last call: whoever survived goes on
// at once, and whoever comes later joins the next round. A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/liveness.h"

namespace ddprun::rendezvous {

struct RoundLimits {
  bool elastic = false;
  int nodes_min = 1;
  int nodes_max = 1;
  Milliseconds join_timeout{600'000};
  Milliseconds last_call{30'000};  // Elastic only.
  // From the opening, elastic only: the first round waits for this long for more than the minimum,
  // however short the last call is, and also with the maximum, if one of them was in this job
  // before. The job may be going on elsewhere, and its coordinator says so to whoever opens its
  // first endpoint again (Leads in control/control_message.h).
  Milliseconds look_around{0};
  bool loopback = false;  // The endpoint is one, so that no other host's node gets here.
};

// What a node said, as views: all nodes are looked at with each one that comes, and to copy their
// texts took most of the time in which thousands join.
struct RoundNode {
  std::string_view host;
  std::string_view from;         // The address that its connection came from.
  std::optional<int> node_rank;  // Static: always there, in range and unique (check_hello).
  int nproc = 1;
  std::string_view role;
  bool hosts_endpoint = false;
};

struct RoundState {
  std::vector<RoundNode> nodes;           // In join order.
  TimePoint opened;                       // When the wait for nodes began.
  std::optional<TimePoint> enough_since;  // When the minimum was reached; elastic.
  bool reforming = false;                 // Not the first round of this job.
  bool has_begun_before = false;  // The first one here, and a node knows of an attempt: elastic.
};

// One node's place in a closed round.
struct Place {
  std::size_t node = 0;  // Index into RoundState::nodes.
  int group_rank = 0;
  int rank_base = 0;       // Workers of all lower group ranks.
  int role_rank_base = 0;  // The same, counting this node's role only.
  int role_world_size = 0;
  int world_size = 0;
};

struct RoundDecision {
  enum class Kind { Wait, Close, TimedOut };
  Kind kind = Kind::Wait;
  std::vector<Place> members;  // Close: by group rank. Nodes without a place are spares.
  std::string reason;          // One line, for people.
  int joined = 0;
  int wanted = 0;                       // Nodes that would close the round.
  std::optional<TimePoint> look_again;  // Wait: decide anew by then.
};

// `now` is an argument so that no test sleeps.
RoundDecision decide(const RoundState& state, const RoundLimits& limits, TimePoint now);

// Who was refused hears what is wrong with its own words, and nothing of the job that it does not
// know already: each fact in an answer is one that a stranger need not guess. The rest is for the
// log of the endpoint's host.
struct Refusal {
  std::string told;
  std::string logged;
  int exit_status = exit_status::refused;  // Of who was refused.
};

// Why a node cannot take part in this job, or nothing when it can. `present` are the nodes already
// there, `run_id` is the job's.
std::optional<Refusal> check_hello(const Hello& hello, const std::string& run_id,
                                   const RoundLimits& limits,
                                   const std::vector<RoundNode>& present);

}  // namespace ddprun::rendezvous
