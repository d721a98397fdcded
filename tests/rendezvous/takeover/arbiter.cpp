// A claim is added where its author saw the list end, or not at all: that two cannot have the same
// place is all that the protocol asks of an arbiter.
#include "tests/rendezvous/takeover/arbiter.h"

#include <cstddef>

namespace ddprun::simulation {

rendezvous::ArbiterReply Arbiter::answer(const std::string& job, const std::string& node_id,
                                         const rendezvous::ArbiterTask& task) {
  ListOfClaims& list = lists_[{job, task.round}];
  const auto number = static_cast<std::size_t>(task.at);
  if (task.add && number == list.claims.size()) {
    list.claims.push_back(*task.add);
  }
  if (task.beat) list.beats[node_id] = *task.beat;
  rendezvous::Claims seen{.count = static_cast<int>(list.claims.size())};
  if (list.claims.empty()) return {.claims = seen, .why = {}};
  seen.last = list.claims.back();
  const auto beat = list.beats.find(seen.last.holder.node_id);
  if (beat != list.beats.end()) seen.beat = beat->second;
  return {.claims = seen, .why = {}};
}

}  // namespace ddprun::simulation
