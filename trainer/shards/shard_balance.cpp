// What is measured decides in the end: with other shares sums may travel another way, and ranks of
// one machine may be slow because of each other.
#include "trainer/shards/shard_balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <queue>
#include <utility>

namespace ddprun::trainer {
namespace {

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double slowest(const ShardShares& shares, const std::vector<double>& shard_s) {
  double most = 0;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    most = std::max(most, shares[rank].count() * shard_s[rank]);
  }
  return most;
}

std::size_t slowest_rank(const ShardShares& shares, const std::vector<double>& shard_s) {
  std::size_t most = 0;
  for (std::size_t rank = 1; rank < shares.size(); ++rank) {
    if (shares[rank].count() * shard_s[rank] > shares[most].count() * shard_s[most]) most = rank;
  }
  return most;
}

std::string ms_text(double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds); }

}  // namespace

ShardShares fastest_shares(int shards, const std::vector<double>& shard_s) {
  const int ranks = static_cast<int>(shard_s.size());
  assert(1 <= ranks && ranks <= shards);
  std::vector<int> counts(shard_s.size(), 1);
  // When a rank would be through with one more; of equal ones the lower rank.
  using Next = std::pair<double, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (std::size_t rank = 0; rank < shard_s.size(); ++rank) next.emplace(2 * shard_s[rank], rank);
  for (int left = shards - ranks; left > 0; --left) {
    const std::size_t rank = next.top().second;
    next.pop();
    counts[rank] += 1;
    next.emplace((counts[rank] + 1) * shard_s[rank], rank);
  }
  return shares_of(counts);
}

ShardBalance::ShardBalance(int shards, int world_size) : shares_(even_shares(shards, world_size)) {}

std::optional<std::string> ShardBalance::look(const std::vector<StepPace>& paces) {
  assert(paces.size() == shares_.size());
  for (const StepPace& pace : paces) {
    if (!(pace.own_s > 0)) return std::nullopt;  // Steps too short for the clock.
  }
  looks_.push_back(paces);
  if (looks_.size() > looks_least) looks_.pop_front();
  ++looked_;
  if (trial_) return looked_ < looks_least ? std::nullopt : end_trial();
  return looked_ < wait_ ? std::nullopt : divide_anew();
}

std::vector<double> ShardBalance::shard_s() const {
  std::vector<double> all;
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    std::vector<double> own;
    for (const auto& look : looks_) own.push_back(look[rank].own_s);
    all.push_back(middle_of(std::move(own)) / shares_[rank].count());
  }
  return all;
}

double ShardBalance::step_s() const {
  std::vector<double> steps;
  for (const auto& look : looks_) {
    double most = 0;
    for (const StepPace& pace : look) most = std::max(most, pace.step_s);
    steps.push_back(most);
  }
  return middle_of(std::move(steps));
}

std::optional<std::string> ShardBalance::end_trial() {
  const Trial trial = *std::exchange(trial_, std::nullopt);
  const double now_s = step_s();
  if (now_s <= (1 - gain_kept) * trial.step_s) {
    wait_ = looks_least;
    return std::nullopt;
  }
  wait_ = std::min(2 * wait_, looks_most);
  take(trial.before);
  return fmt::format(
      "shards go back to who had them: a step took {} with the others, and {} before",
      ms_text(now_s), ms_text(trial.step_s));
}

std::optional<std::string> ShardBalance::divide_anew() {
  const std::vector<double> own = shard_s();
  const int shards = shares_.back().end;
  ShardShares fastest = fastest_shares(shards, own);
  if (slowest(fastest, own) > (1 - gain_least) * slowest(shares_, own)) return std::nullopt;
  const std::size_t rank = slowest_rank(shares_, own);
  std::vector<double> others = own;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(rank));
  const std::string why =
      fmt::format("rank {} takes {} of {} shards, {} before: it needs {} for one, and others {}",
                  rank, fastest[rank].count(), shards, shares_[rank].count(), ms_text(own[rank]),
                  ms_text(middle_of(std::move(others))));
  trial_ = Trial{shares_, step_s()};
  take(std::move(fastest));
  return why;
}

void ShardBalance::take(ShardShares shares) {
  shares_ = std::move(shares);
  looks_.clear();
  looked_ = 0;
}

}  // namespace ddprun::trainer
