// Following the answers from rank to rank.
#include "worker/peers/blame.h"

namespace ddprun::worker {

std::string names_of(RankSet ranks, const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks_max; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    if (!text.empty()) text += ", ";
    text +=
        rank < names.size() && !names[rank].empty() ? names[rank] : "rank " + std::to_string(rank);
  }
  return text;
}

Blame find_blame(int rank, RankSet waits_for, const std::vector<std::optional<RankSet>>& answers) {
  Blame blame;
  RankSet seen = RankSet{1} << rank;
  RankSet open = waits_for & ~seen;
  while (open != 0) {
    RankSet next = 0;
    for (std::size_t peer = 0; peer < answers.size(); ++peer) {
      const RankSet bit = RankSet{1} << peer;
      if ((open & bit) == 0) continue;
      if (!answers[peer].has_value()) {
        blame.silent |= bit;
      } else if (*answers[peer] == 0) {
        blame.absent |= bit;
      } else {
        next |= *answers[peer];
      }
    }
    seen |= open;
    open = next & ~seen;
  }
  if ((blame.silent | blame.absent) == 0) blame.circular = waits_for;
  return blame;
}

std::string to_string(const Blame& blame, const std::vector<std::string>& names) {
  std::string text;
  if (blame.silent != 0) {
    text += names_of(blame.silent, names) + " did not answer (stopped, or cut off from the others)";
  }
  if (blame.absent != 0) {
    if (!text.empty()) text += "; ";
    text +=
        names_of(blame.absent, names) + " did not call it (busy elsewhere, or made fewer calls)";
  }
  if (blame.circular != 0) {
    text += names_of(blame.circular, names) +
            " had not got as far (slow, or in another order of calls)";
  }
  return text;
}

}  // namespace ddprun::worker
