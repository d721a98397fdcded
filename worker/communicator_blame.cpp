// Following the answers from rank to rank.
#include "worker/communicator_blame.h"

namespace ddprun::worker {
namespace {

std::string names_of(RankSet ranks) {
  std::string names;
  for (int rank = 0; rank < 64; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    names += names.empty() ? "rank " : ", rank ";
    names += std::to_string(rank);
  }
  return names;
}

}  // namespace

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

std::string to_string(const Blame& blame) {
  std::string text;
  if (blame.silent != 0) {
    text += names_of(blame.silent) + " did not answer (stopped, or cut off from the others)";
  }
  if (blame.absent != 0) {
    if (!text.empty()) text += "; ";
    text += names_of(blame.absent) + " did not call it (busy elsewhere, or made fewer calls)";
  }
  if (blame.circular != 0) {
    text += names_of(blame.circular) + " had not got as far (slow, or in another order of calls)";
  }
  return text;
}

}  // namespace ddprun::worker
