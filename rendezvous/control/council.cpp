// One rule of how many are enough, since the coordinator that stays and the agent that takes over
// must never both believe that they have it.
#include "rendezvous/control/council.h"

#include <algorithm>

namespace ddprun::rendezvous {

std::size_t enough_alone(const Council& council, Arbitration arbitration) {
  if (council.empty()) return 0;
  return arbitration == Arbitration::Anyone ? council.size() : council.size() / 2 + 1;
}

std::size_t enough_with_word(const Council& council, Arbitration arbitration) {
  if (council.empty()) return 0;
  if (arbitration == Arbitration::Anyone) return 1;
  // Half of an odd number, rounded up, is its majority already.
  const std::size_t half = (council.size() + 1) / 2;
  return arbitration == Arbitration::Halves ? half : enough_alone(council, arbitration);
}

std::size_t count_in(const Council& council, const std::function<bool(const std::string& id)>& is) {
  return static_cast<std::size_t>(std::count_if(
      council.begin(), council.end(), [&](const Seat& seat) { return is(seat.node_id); }));
}

}  // namespace ddprun::rendezvous
