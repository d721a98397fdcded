// The vote, apart from hashing and sending, so that every distribution of ranks can be tested.
#include "trainer/consistency/sync_verdict.h"

#include <algorithm>
#include <map>

namespace ddprun::trainer {
namespace {

using Hashes = std::vector<std::uint64_t>;

std::size_t first_difference(const Hashes& a, const Hashes& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
}

}  // namespace

SyncVerdict judge_ranks(const std::vector<Hashes>& hashes) {
  std::map<Hashes, std::size_t> votes;
  for (const Hashes& own : hashes) votes[own] += 1;
  if (votes.size() <= 1) return {true, {}};
  const auto best = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  SyncVerdict verdict{2 * best->second > hashes.size(), {}};
  // Without a majority nobody knows who is right: each is compared with one that differs from it.
  const Hashes& one = verdict.majority ? best->first : hashes.front();
  const Hashes& other =
      *std::find_if(hashes.begin(), hashes.end(), [&](const Hashes& own) { return own != one; });
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    const bool odd = hashes[rank] != one;
    if (verdict.majority && !odd) continue;
    verdict.odd.push_back(
        {static_cast<int>(rank), first_difference(hashes[rank], odd ? one : other)});
  }
  return verdict;
}

std::optional<std::string> describe_verdict(const SyncVerdict& verdict,
                                            const std::vector<std::string>& names,
                                            std::int64_t step) {
  if (verdict.odd.empty()) return std::nullopt;
  std::string text = "the ranks' models differ after step " + std::to_string(step) + ": ";
  for (std::size_t i = 0; i < verdict.odd.size(); ++i) {
    text += (i > 0 ? ", " : "") + ("rank " + std::to_string(verdict.odd[i].rank)) + " first in '" +
            names[verdict.odd[i].tensor] + "'";
  }
  text += verdict.majority ? " (all others agree)" : " (no majority says who is right)";
  return text +
         ". Go on from the last checkpoint; if it is the same rank again, look at its memory "
         "and device";
}

}  // namespace ddprun::trainer
