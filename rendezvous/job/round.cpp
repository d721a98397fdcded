// Membership as one function of who is there, the limits and the time; job.cpp calls it whenever
// one of the three has changed.
#include "rendezvous/job/round.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "rendezvous/control/visible_text.h"
#include "rendezvous/counted.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::duration_cast;
using std::chrono::seconds;

std::string seconds_left(TimePoint deadline, TimePoint now) {
  const auto left = std::max(deadline - now, TimePoint::duration::zero());
  return fmt::format("{} s", duration_cast<seconds>(left + std::chrono::milliseconds(999)).count());
}

// "node 1", "nodes 1, 2, 5", "nodes 1, 2, 3, 4 and 12 more".
std::string missing_ranks(const RoundState& state, const RoundLimits& limits) {
  std::vector<bool> there(static_cast<std::size_t>(limits.nodes_max), false);
  for (const RoundNode& node : state.nodes) {
    there[static_cast<std::size_t>(node.node_rank.value_or(0))] = true;
  }
  const auto missing = std::count(there.begin(), there.end(), false);
  std::string text = missing == 1 ? "node" : "nodes";
  int named = 0;
  for (std::size_t rank = 0; rank < there.size() && named < 8; ++rank) {
    if (there[rank]) continue;
    text += fmt::format("{}{}", named == 0 ? " " : ", ", rank);
    ++named;
  }
  if (missing > named) text += fmt::format(" and {} more", missing - named);
  return text;
}

// The nodes of a closed round in the order of their group ranks.
std::vector<std::size_t> ordered(const RoundState& state, const RoundLimits& limits) {
  const auto size =
      std::min<std::size_t>(state.nodes.size(), static_cast<std::size_t>(limits.nodes_max));
  // Whoever takes part is settled by join order, but never without the node that hosts the
  // endpoint: the ranks would then depend on a node that does not train.
  std::vector<std::size_t> chosen(state.nodes.size());
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  std::stable_partition(chosen.begin(), chosen.end(),
                        [&](std::size_t i) { return state.nodes[i].hosts_endpoint; });
  chosen.resize(size);

  std::vector<std::optional<std::size_t>> seats(size);
  std::vector<std::size_t> without_seat;
  for (const std::size_t i : chosen) {
    const auto rank = state.nodes[i].node_rank;
    // In an elastic job a wish: too high or taken, it becomes the next free one.
    if (rank && static_cast<std::size_t>(*rank) < size && !seats[static_cast<std::size_t>(*rank)]) {
      seats[static_cast<std::size_t>(*rank)] = i;
    } else {
      without_seat.push_back(i);
    }
  }
  auto next = without_seat.begin();
  std::vector<std::size_t> order;
  for (const auto& seat : seats) order.push_back(seat ? *seat : *next++);
  return order;
}

std::vector<Place> places(const RoundState& state, const RoundLimits& limits) {
  std::vector<Place> result;
  std::map<std::string_view, int> workers_of_role;
  int workers = 0;
  for (const std::size_t i : ordered(state, limits)) {
    const RoundNode& node = state.nodes[i];
    int& same_role = workers_of_role[node.role];
    result.push_back({.node = i,
                      .group_rank = static_cast<int>(result.size()),
                      .rank_base = workers,
                      .role_rank_base = same_role});
    same_role += node.nproc;
    workers += node.nproc;
  }
  for (Place& place : result) {
    place.role_world_size = workers_of_role[state.nodes[place.node].role];
    place.world_size = workers;
  }
  return result;
}

Refusal rank_taken(const Hello& hello, const RoundNode& holder) {
  return {
      fmt::format("--node-rank {} is already taken: give each node its own rank (the log of the "
                  "endpoint's host says who has it)",
                  *hello.node_rank),
      fmt::format("node {} asked for --node-rank {}, which {} at {} has: give each node its own "
                  "rank",
                  hello.host, *hello.node_rank, holder.host, holder.from)};
}

}  // namespace

RoundDecision decide(const RoundState& state, const RoundLimits& limits, TimePoint now) {
  const int joined = static_cast<int>(state.nodes.size());
  const int needed = limits.elastic ? limits.nodes_min : limits.nodes_max;
  const TimePoint deadline = state.opened + limits.join_timeout;
  RoundDecision decision{.joined = joined, .wanted = needed};

  const auto close = [&](std::string reason) {
    decision.kind = RoundDecision::Kind::Close;
    decision.members = places(state, limits);
    decision.reason = std::move(reason);
    return decision;
  };
  const TimePoint looked_around = state.opened + limits.look_around;
  const bool may_go_on_elsewhere = state.has_begun_before && now < looked_around;
  if (joined >= limits.nodes_max) {
    if (!may_go_on_elsewhere) return close(fmt::format("all {} nodes are here", limits.nodes_max));
    decision.look_again = looked_around;
    decision.reason = fmt::format(
        "all {} nodes are here; one was in this job before, and it may be going on elsewhere: "
        "listening for its coordinator for {}",
        limits.nodes_max, seconds_left(looked_around, now));
    return decision;
  }
  if (joined >= needed) {
    if (state.reforming) return close(fmt::format("{} nodes go on", joined));
    const TimePoint last_call_over =
        std::max(state.enough_since.value_or(now) + limits.last_call, looked_around);
    if (now >= last_call_over) {
      return close(
          fmt::format("{} of {} nodes when the last call ended", joined, limits.nodes_max));
    }
    decision.wanted = limits.nodes_max;
    decision.look_again = last_call_over;
    decision.reason = fmt::format("{} of {} to {} nodes joined, last call for {}", joined, needed,
                                  limits.nodes_max, seconds_left(last_call_over, now));
    return decision;
  }

  const std::string alone =
      limits.loopback ? "; other hosts cannot reach the endpoint, a loopback address" : "";
  const std::string who =
      limits.elastic ? counted(needed - joined, "more node") : missing_ranks(state, limits);
  if (now >= deadline) {
    decision.kind = RoundDecision::Kind::TimedOut;
    decision.reason =
        fmt::format("{} did not join within {} s ({} of {} nodes came){}", who,
                    duration_cast<seconds>(limits.join_timeout).count(), joined, needed, alone);
    return decision;
  }
  decision.look_again = deadline;
  decision.reason = fmt::format("waiting for {} ({} of {} nodes here, {} left){}", who, joined,
                                needed, seconds_left(deadline, now), alone);
  return decision;
}

std::optional<Refusal> check_hello(const Hello& hello, const std::string& run_id,
                                   const RoundLimits& limits,
                                   const std::vector<RoundNode>& present) {
  // Versions are no secret, and a difference is the commonest mistake: it may be told.
  if (hello.version != control_protocol_version) {
    const std::string why = fmt::format(
        "this endpoint speaks version {} of the control protocol, node {} speaks {}: "
        "use the same ddprun on all nodes",
        control_protocol_version, hello.host, hello.version);
    return Refusal{why, why};
  }
  const std::string asked = visible_text(hello.run_id, Lines::Escape);
  if (hello.run_id != run_id) {
    return Refusal{
        fmt::format("this endpoint serves another job than \"{}\": check --rdzv-id and the "
                    "endpoint's address and port",
                    asked),
        fmt::format("node {} asked for the job \"{}\", this is \"{}\"", hello.host, asked,
                    visible_text(run_id, Lines::Escape))};
  }
  const auto backend = [](bool elastic) { return elastic ? "c10d" : "static"; };
  if (hello.elastic != limits.elastic || hello.nnodes_min != limits.nodes_min ||
      hello.nnodes_max != limits.nodes_max) {
    return Refusal{
        fmt::format("--nnodes {}:{} and --rdzv-backend {} are not what this job was started with "
                    "on the endpoint's host, whose log says it: give the same on all nodes",
                    hello.nnodes_min, hello.nnodes_max, backend(hello.elastic)),
        fmt::format("this job was started with --nnodes {}:{} and --rdzv-backend {} here, but with "
                    "--nnodes {}:{} and {} on {}: give the same on all nodes",
                    limits.nodes_min, limits.nodes_max, backend(limits.elastic), hello.nnodes_min,
                    hello.nnodes_max, backend(hello.elastic), hello.host)};
  }
  if (limits.elastic) return std::nullopt;
  if (!hello.node_rank || *hello.node_rank >= limits.nodes_max) {
    const std::string why =
        fmt::format("--node-rank {} is out of range: {} nodes have ranks 0 to {}",
                    hello.node_rank ? std::to_string(*hello.node_rank) : "(none)", limits.nodes_max,
                    limits.nodes_max - 1);
    return Refusal{why, fmt::format("node {}: {}", hello.host, why)};
  }
  for (const RoundNode& node : present) {
    if (node.node_rank == hello.node_rank) return rank_taken(hello, node);
  }
  return std::nullopt;
}

}  // namespace ddprun::rendezvous
