// The greatest position, and the lowest rank that has it: all ranks come to the same without
// another word.
#include "worker/state_lead.h"

#include <algorithm>

namespace ddprun::worker {

StateLead find_lead(const std::vector<StatePosition>& ranks) {
  const auto furthest = std::max_element(ranks.begin(), ranks.end());  // The first of equal ones.
  if (furthest->step < 0) return {};
  return {.any = true,
          .root = static_cast<int>(furthest - ranks.begin()),
          .complete = std::all_of(ranks.begin(), ranks.end(),
                                  [&](const StatePosition& rank) { return rank == *furthest; }),
          .position = *furthest};
}

}  // namespace ddprun::worker
