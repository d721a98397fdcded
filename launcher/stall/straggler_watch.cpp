// A rank is compared with the middle one of the others: with the mean a very slow one would make
// all others look fast, and of two ranks it would be half of its own measure.
#include "launcher/stall/straggler_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace ddprun::launcher {
namespace {

// Sorted once for all: a job may have thousands of ranks.
class Middle {
 public:
  explicit Middle(const std::vector<RankPace>& ranks) {
    for (const RankPace& rank : ranks) sorted_.push_back(rank.own_s);
    std::sort(sorted_.begin(), sorted_.end());
  }

  // Without this one, who is among them, the upper half moves down by one place.
  double of_others(const RankPace& but) const {
    const std::size_t middle = (sorted_.size() - 1) / 2;
    return but.own_s <= sorted_[middle] ? sorted_[middle + 1] : sorted_[middle];
  }

 private:
  std::vector<double> sorted_;
};

std::string ms_text(double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds); }

}  // namespace

std::string describe(const StragglerNews& news) {
  const std::string times = fmt::format("{} of each step before it waits for others, who need {}",
                                        ms_text(news.own_s), ms_text(news.others_s));
  if (!news.whole_node) {
    const std::string who = fmt::format("rank {} on {}", news.rank, news.host);
    return news.over
               ? fmt::format("{} keeps up again: it needs {}", who, times)
               : fmt::format("{} is slow, by {:.1f} times: it needs {}", who, news.times, times);
  }
  const std::string who =
      fmt::format("all {} ranks of node {} on {}", news.ranks.size(), news.node, news.host);
  return news.over ? fmt::format("{} keep up again: rank {} needs {}", who, news.rank, times)
                   : fmt::format("{} are slow, rank {} by {:.1f} times: it needs {}", who,
                                 news.rank, news.times, times);
}

std::optional<StragglerNews> StragglerWatch::look(const std::vector<RankPace>& ranks,
                                                  TimePoint now) {
  if (ranks.size() < 2) return std::nullopt;
  const Middle middle(ranks);
  std::optional<StragglerNews> news;
  const RankPace* slowest = nullptr;
  for (const RankPace& rank : ranks) {
    const double others = middle.of_others(rank);
    if (others <= 0 || !is_news(rank, others, now)) continue;
    const double times = rank.own_s / others;
    if (news && news->times >= times) continue;
    slowest = &rank;
    news = StragglerNews{.node = rank.node,
                         .host = rank.host,
                         .over = seen_[rank.rank].told,
                         .rank = rank.rank,
                         .times = times,
                         .own_s = rank.own_s,
                         .others_s = others};
  }
  if (!news) return news;
  news->ranks = together_with(*slowest, ranks);
  news->whole_node = news->ranks.size() > 1;
  for (const int rank : news->ranks) seen_[rank] = {.told = !news->over};
  return news;
}

bool StragglerWatch::is_news(const RankPace& rank, double others_s, TimePoint now) {
  const double times = rank.own_s / others_s;
  const bool slow = times >= limits_.slow && rank.own_s - others_s >= limits_.share * rank.step_s;
  Seen& seen = seen_[rank.rank];
  if (seen.told ? times > limits_.fine : !slow) {
    seen.other_since.reset();
    return false;
  }
  if (!seen.other_since) seen.other_since = now;
  return now - *seen.other_since >= limits_.lasting;
}

// What slows down a machine slows down all its ranks, and eight lines would say it worse than one.
std::vector<int> StragglerWatch::together_with(const RankPace& slowest,
                                               const std::vector<RankPace>& ranks) {
  const bool over = seen_[slowest.rank].told;
  std::vector<int> of_node;
  bool all = true;
  for (const RankPace& rank : ranks) {
    if (rank.node != slowest.node) continue;
    const Seen& seen = seen_[rank.rank];
    all = all && (seen.told == over ? seen.other_since.has_value() : !over);
    of_node.push_back(rank.rank);
  }
  const bool other_nodes = of_node.size() < ranks.size();
  return all && other_nodes ? of_node : std::vector{slowest.rank};
}

}  // namespace ddprun::launcher
