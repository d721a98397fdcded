// Keeping the list of turns; the rule stands in the header.
#include "worker/torch/reduction_turns.h"

#include <algorithm>
#include <cassert>

namespace ddprun::worker {

ReductionTurns::Member ReductionTurns::enter() {
  members_.push_back(next_);
  return next_++;
}

void ReductionTurns::leave(Member member) {
  std::erase(members_, member);
  std::erase(expected_, member);
}

void ReductionTurns::expect(Member member) {
  assert(std::find(members_.begin(), members_.end(), member) != members_.end());
  std::erase(expected_, member);
  expected_.insert(expected_.begin(), member);
}

std::optional<ReductionTurns::Member> ReductionTurns::turn() const {
  // Alone, it has nobody to be ordered with, also when its module ran without the wrapper.
  if (members_.size() == 1) return members_.front();
  if (expected_.empty()) return std::nullopt;
  return expected_.front();
}

std::optional<ReductionTurns::Member> ReductionTurns::pass(Member member) {
  std::erase(expected_, member);
  if (expected_.empty()) return std::nullopt;
  return expected_.front();
}

std::vector<ReductionTurns::Member> ReductionTurns::sorted(
    const std::vector<Member>& running) const {
  std::vector<Member> order;
  const auto runs = [&](Member member) {
    return std::find(running.begin(), running.end(), member) != running.end();
  };
  std::copy_if(expected_.begin(), expected_.end(), std::back_inserter(order), runs);
  for (const Member member : members_) {
    const bool listed = std::find(expected_.begin(), expected_.end(), member) != expected_.end();
    if (!listed && runs(member)) order.push_back(member);
  }
  return order;
}

}  // namespace ddprun::worker
