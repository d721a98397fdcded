// What decide() (round.h) cannot know, since it sees one moment: how long that moment has lasted.
#include "rendezvous/job/forming_round.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ddprun::rendezvous {
namespace {

constexpr int few = 32;               // They hear of each one who comes.
constexpr std::size_t went_kept = 8;  // Spares may come and go beside a job for weeks.

}  // namespace

FormingRound::FormingRound(const RoundLimits& limits, TimePoint now)
    : limits_(limits), opened_(now), look_again_(now + limits.join_timeout) {}

// The backoff stays: the failure before it is why the round forms anew. So does who went.
void FormingRound::reopen(TimePoint now) {
  opened_ = now;
  reforming_ = true;
  has_begun_before_ = false;
  enough_since_.reset();
  told_joined_ = -1;
}

void FormingRound::went(std::string who_and_how) {
  went_.push_back(std::move(who_and_how));
  if (went_.size() <= went_kept) return;
  went_.pop_front();
  ++went_before_;
}

std::optional<RoundDecision> FormingRound::look(std::vector<RoundNode> nodes, TimePoint now) {
  if (not_before_ && now < *not_before_) {
    look_again_ = not_before_;
    return std::nullopt;
  }
  const int needed = limits_.elastic ? limits_.nodes_min : limits_.nodes_max;
  const bool enough = static_cast<int>(nodes.size()) >= needed;
  if (!enough) enough_since_.reset();
  if (enough && !enough_since_) enough_since_ = now;
  RoundDecision decision = decide({.nodes = std::move(nodes),
                                   .opened = opened_,
                                   .enough_since = enough_since_,
                                   .reforming = reforming_,
                                   .has_begun_before = has_begun_before_},
                                  limits_, now);
  look_again_ = decision.look_again;
  switch (decision.kind) {
    case RoundDecision::Kind::Wait:
      look_again_ = std::min(look_again_.value_or(now + repeat), now + repeat);
      break;
    case RoundDecision::Kind::Close:
      not_before_.reset();
      went_.clear();
      went_before_ = 0;
      break;
    case RoundDecision::Kind::TimedOut:
      if (went_before_ > 0) decision.reason += "; " + std::to_string(went_before_) + " went before";
      for (const std::string& one : went_) decision.reason += "; " + one;
      break;
  }
  return decision;
}

bool FormingRound::has_news(const RoundDecision& wait, TimePoint now) {
  // All are told each time: hundreds who come at once would cost as many messages as they have
  // pairs. They hear of it a little later, and those who come meanwhile with it.
  const Milliseconds pause{wait.joined > few ? wait.joined / 2 : 0};
  const TimePoint due = told_at_ + (wait.joined == told_joined_ ? repeat : pause);
  if (told_joined_ >= 0 && now < due) {
    look_again_ = std::min(look_again_.value_or(due), due);
    return false;
  }
  told_joined_ = wait.joined;
  told_at_ = now;
  return true;
}

}  // namespace ddprun::rendezvous
