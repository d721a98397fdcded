// One rule of what a majority is, since the coordinator that stays and the agent that takes over
// must never both believe that they have it.
#include "rendezvous/control/council.h"

#include <algorithm>

namespace ddprun::rendezvous {

bool has_majority(const Council& council,
                  const std::function<bool(const std::string& id)>& agrees) {
  if (council.empty()) return true;
  const auto votes = std::count_if(council.begin(), council.end(),
                                   [&](const Seat& seat) { return agrees(seat.node_id); });
  return 2 * static_cast<std::size_t>(votes) > council.size();
}

}  // namespace ddprun::rendezvous
