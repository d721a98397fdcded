// In this order: an agent that belongs to a later term must not be told that it came too late, and
// a rank is contested only by who has nothing else wrong.
#include "rendezvous/job/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace ddprun::rendezvous {
namespace {

Admission refused(std::string told, std::string logged, int status = exit_status::refused) {
  return {Admission::Kind::Refused, {std::move(told), std::move(logged), status}};
}

// Twice as many spares as members are more than anybody needs; each costs a connection.
std::size_t nodes_at_most(const RoundLimits& round) {
  return 2 * static_cast<std::size_t>(round.nodes_max) + 16;
}

// An agent of the same host that may have gone without a word.
const Roster::Node* rank_holder(const Hello& hello, const Roster& nodes,
                                const AdmissionRules& rules) {
  if (rules.round.elastic || !rules.heartbeats) return nullptr;
  if (check_hello(hello, rules.run_id, rules.round, {})) return nullptr;
  const auto holds_it = [&](const Roster::Node& node) {
    return node.hello.node_rank == hello.node_rank && node.hello.host == hello.host &&
           node.hello.node_id != rules.host_node_id;
  };
  const auto holder = std::find_if(nodes.begin(), nodes.end(), holds_it);
  return holder == nodes.end() ? nullptr : &*holder;
}

}  // namespace

Admission admission_of(const Hello& hello, const Roster& nodes, const AdmissionRules& rules) {
  if (hello.run_id == rules.run_id && hello.term > rules.term) {
    return {.kind = Admission::Kind::Elsewhere};
  }
  if (rules.ending) {
    // Nothing is wrong with this node. A status that asks for no other try would let a Kubernetes
    // Job fail for good whose pod was replaced while the others still saved.
    return refused("this job is ending: the same command may be tried again when it has ended",
                   fmt::format("node {} came when the job was ending", hello.host),
                   exit_status::coordinator_lost);
  }
  if (nodes.with_id(hello.node_id) != nullptr) {
    const std::string why = "an agent with this node_id is already here";
    return refused(why, why);
  }
  std::vector<RoundNode> present;
  present.reserve(nodes.size());
  for (const Roster::Node& node : nodes) {
    present.push_back(
        {.host = node.hello.host, .from = node.hello.from, .node_rank = node.hello.node_rank});
  }
  if (auto refusal = check_hello(hello, rules.run_id, rules.round, present)) {
    if (const Roster::Node* holder = rank_holder(hello, nodes, rules)) {
      return {.kind = Admission::Kind::ContestsRank, .holder = holder->peer};
    }
    return {Admission::Kind::Refused, std::move(*refusal)};
  }
  if (nodes.size() >= nodes_at_most(rules.round)) {
    const std::string why = "there are enough spares";
    return refused(why, fmt::format("node {}: {}, {}", hello.host, why, nodes.size()));
  }
  return {};
}

}  // namespace ddprun::rendezvous
