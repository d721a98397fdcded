// The verdict on a silent peer, and its words.
#include "worker/peers/silence.h"

namespace ddprun::worker {

Silence judge_silence(int rank, int peer, const std::vector<std::optional<RankSet>>& heard) {
  if (heard.size() <= 2) return {Silence::Kind::Unknown, {}};
  bool answered = false;
  RankSet witnesses;
  for (int other = 0; other < static_cast<int>(heard.size()); ++other) {
    const auto& hears = heard[static_cast<std::size_t>(other)];
    // What the two ends say of each other is what is in question.
    if (other == rank || other == peer || !hears) continue;
    answered = true;
    if (hears->contains(peer)) witnesses.insert(other);
  }
  if (!witnesses.empty()) return {Silence::Kind::LinkCut, witnesses};
  return {answered ? Silence::Kind::PeerGone : Silence::Kind::SelfLost, {}};
}

std::string to_string(const Silence& silence, int rank, int peer,
                      const std::vector<std::string>& names, const std::string& after) {
  const std::string& self = names[static_cast<std::size_t>(rank)];
  const std::string& other = names[static_cast<std::size_t>(peer)];
  switch (silence.kind) {
    case Silence::Kind::LinkCut: {
      // The lower rank first: both ends report it, and the first report to arrive stays.
      const auto [low, high] = rank < peer ? std::pair(self, other) : std::pair(other, self);
      return "the link between " + low + " and " + high +
             " is cut: neither has heard the other for " + after + ", while " +
             names_of(silence.witnesses) + " can reach both";
    }
    case Silence::Kind::PeerGone:
      return other + " is gone: nothing has come from its host for " + after +
             ", and no other rank hears it (its host or its network went down)";
    case Silence::Kind::SelfLost:
      return self + " is cut off: it has heard nothing from " + other + " for " + after +
             ", and no other rank answers it";
    case Silence::Kind::Unknown:
      break;
  }
  return other + " is gone: nothing has come from its host for " + after +
         " (its host or network went down, or the link between it and rank " +
         std::to_string(rank) + " was cut)";
}

}  // namespace ddprun::worker
