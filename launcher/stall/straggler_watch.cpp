// A rank is compared with the middle one of the others: with the mean a very slow one would make
// all others look fast, and of two ranks it would be half of its own measure.
#include "launcher/stall/straggler_watch.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

double middle_of_others(const std::vector<RankPace>& ranks, const RankPace& but) {
  std::vector<double> others;
  for (const RankPace& rank : ranks) {
    if (rank.rank != but.rank) others.push_back(rank.own_s);
  }
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  return *middle;
}

}  // namespace

std::optional<StragglerNews> StragglerWatch::look(const std::vector<RankPace>& ranks,
                                                  TimePoint now) {
  std::optional<StragglerNews> news;
  if (ranks.size() < 2) return news;
  for (const RankPace& rank : ranks) {
    const double others = middle_of_others(ranks, rank);
    if (others <= 0) continue;
    const double times = rank.own_s / others;
    const bool slow = times >= limits_.slow && rank.own_s - others >= limits_.share * rank.step_s;
    Seen& seen = seen_[rank.rank];
    if (seen.told ? times > limits_.fine : !slow) {
      seen.other_since.reset();
      continue;
    }
    if (!seen.other_since) seen.other_since = now;
    if (now - *seen.other_since < limits_.lasting || (news && news->times >= times)) continue;
    news = StragglerNews{rank.rank, seen.told, times, rank.own_s, others};
  }
  if (news) seen_[news->rank] = {.told = !news->over};
  return news;
}

}  // namespace ddprun::launcher
