// All is counted in running time: a millisecond of it is earned in each that the job runs, and each
// that a loss costs takes ten. How long the others stood for a newcomer's coming is known only when
// it came, so its going is counted twice instead, which takes as long.
#include "rendezvous/job/newcomers.h"

#include <algorithm>

namespace ddprun::rendezvous {
namespace {

constexpr int running_per_cost = 10;

}  // namespace

Newcomers::Duration Newcomers::balance(TimePoint now) const {
  const Duration earned = running_since_ ? now - *running_since_ : Duration{};
  // What was earned long ago pays for no crowd of today.
  return std::min<Duration>(balance_ + earned, limits_.settled);
}

void Newcomers::charge(Duration cost, TimePoint now) {
  balance_ = std::max<Duration>(balance(now) - running_per_cost * cost, -limits_.pause_max);
  if (running_since_) running_since_ = now;
}

void Newcomers::runs(TimePoint now) {
  if (lost_ && stopped_at_) {
    const Duration cost = 2 * (now - *stopped_at_);
    if (cost > limits_.cost_least) charge(cost - limits_.cost_least, now);
  }
  balance_ = balance(now);
  running_since_ = now;
  stopped_at_.reset();
  lost_ = false;
}

void Newcomers::stands(TimePoint now) {
  balance_ = balance(now);
  running_since_.reset();
  if (!stopped_at_) stopped_at_ = now;
}

void Newcomers::went(TimePoint now) {
  overdrawn_ = balance(now) < Duration{};
  charge(limits_.cost_least, now);
  lost_ = true;
}

std::optional<TimePoint> Newcomers::pause_ends(TimePoint now) const {
  const Duration debt = -balance(now);
  if (!overdrawn_ || debt <= Duration{}) return std::nullopt;
  return now + debt;
}

}  // namespace ddprun::rendezvous
