// The verdict on a silent peer, and its words.
#include "worker/peers/silence.h"

#include <algorithm>

namespace ddprun::worker {

Silence judge_silence(int rank, int peer, const std::vector<std::optional<RankSet>>& heard) {
  // Over NCCL there may be more ranks than a RankSet can name: then nobody's word is understood.
  if (heard.size() <= 2 || heard.size() > ranks_max) return {Silence::Kind::Unknown, 0};
  const RankSet silent_one = RankSet{1} << peer;
  bool answered = false;
  RankSet witnesses = 0;
  for (std::size_t r = 0; r < heard.size(); ++r) {
    // What the two ends say of each other is what is in question.
    if (static_cast<int>(r) == rank || static_cast<int>(r) == peer || !heard[r]) continue;
    answered = true;
    if ((*heard[r] & silent_one) != 0) witnesses |= RankSet{1} << r;
  }
  if (witnesses != 0) return {Silence::Kind::LinkCut, witnesses};
  return {answered ? Silence::Kind::PeerGone : Silence::Kind::SelfLost, 0};
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
