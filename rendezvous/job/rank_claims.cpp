// The list of newcomers that wait for a rank which an older agent of their host still holds.
#include "rendezvous/job/rank_claims.h"

#include <algorithm>

namespace ddprun::rendezvous {

bool RankClaims::waits(PeerId newcomer) const {
  return std::any_of(claims_.begin(), claims_.end(),
                     [&](const Claim& claim) { return claim.newcomer == newcomer; });
}

void RankClaims::drop(PeerId newcomer) {
  std::erase_if(claims_, [&](const Claim& claim) { return claim.newcomer == newcomer; });
}

std::vector<RankClaims::Claim> RankClaims::take_those_on(PeerId holder) {
  const auto others = std::stable_partition(
      claims_.begin(), claims_.end(), [&](const Claim& claim) { return claim.holder != holder; });
  std::vector<Claim> taken(others, claims_.end());
  claims_.erase(others, claims_.end());
  return taken;
}

std::optional<RankClaims::Claim> RankClaims::take_due(TimePoint now, TimePoint::duration late,
                                                      Milliseconds patience) {
  if (late > patience / 2) {
    for (Claim& claim : claims_) claim.deadline = now + patience;
  }
  const auto due = std::find_if(claims_.begin(), claims_.end(),
                                [&](const Claim& claim) { return claim.deadline <= now; });
  if (due == claims_.end()) return std::nullopt;
  Claim claim = std::move(*due);
  claims_.erase(due);
  return claim;
}

std::optional<TimePoint> RankClaims::next_deadline() const {
  std::optional<TimePoint> next;
  for (const Claim& claim : claims_) next = std::min(next.value_or(claim.deadline), claim.deadline);
  return next;
}

}  // namespace ddprun::rendezvous
