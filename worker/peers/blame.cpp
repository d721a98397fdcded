// Following the answers from rank to rank.
#include "worker/peers/blame.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t names_max = 16;  // Of hundreds nobody reads more.

}  // namespace

std::string names_of(const RankSet& ranks, const std::vector<std::string>& names) {
  std::string text;
  std::size_t named = 0;
  const std::vector<int> all = ranks.ranks();
  for (const int rank : all) {
    if (named == names_max) return text + " and " + std::to_string(all.size() - named) + " more";
    if (named++ > 0) text += ", ";
    const auto at = static_cast<std::size_t>(rank);
    text += at < names.size() && !names[at].empty() ? names[at] : "rank " + std::to_string(rank);
  }
  return text;
}

Blame find_blame(int rank, const RankSet& waits_for,
                 const std::vector<std::optional<RankSet>>& answers) {
  Blame blame;
  RankSet seen{rank};
  RankSet open = waits_for - seen;
  while (!open.empty()) {
    RankSet next;
    for (const int peer : open.ranks()) {
      if (peer >= static_cast<int>(answers.size())) continue;  // A peer may say anything.
      const auto& answer = answers[static_cast<std::size_t>(peer)];
      if (!answer) {
        blame.silent.insert(peer);
      } else if (answer->empty()) {
        blame.absent.insert(peer);
      } else {
        next |= *answer;
      }
    }
    seen |= open;
    open = next - seen;
  }
  if (blame.silent.empty() && blame.absent.empty()) blame.circular = waits_for;
  return blame;
}

std::string to_string(const Blame& blame, const std::vector<std::string>& names) {
  std::string text;
  if (!blame.silent.empty()) {
    text += names_of(blame.silent, names) + " did not answer (stopped, or cut off from the others)";
  }
  if (!blame.absent.empty()) {
    if (!text.empty()) text += "; ";
    text +=
        names_of(blame.absent, names) + " did not call it (busy elsewhere, or made fewer calls)";
  }
  if (!blame.circular.empty()) {
    text += names_of(blame.circular, names) +
            " had not got as far (slow, or in another order of calls)";
  }
  return text;
}

}  // namespace ddprun::worker
