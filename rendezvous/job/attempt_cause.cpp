// Ages become times of one clock, and times are compared with more patience than a message needs.
#include "rendezvous/job/attempt_cause.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace ddprun::rendezvous {

void AttemptCause::attempt_began(TimePoint now) {
  began_ = now;
  forget();
}

void AttemptCause::forget() {
  cause_.reset();
  failed_at_.reset();
}

void AttemptCause::ended_by(FirstCause cause, TimePoint now) {
  failed_at_.reset();
  if (cause.kind == FirstCause::Kind::WorkerFailed) failed_at_ = time_of(cause, now);
  cause_ = std::move(cause);
}

bool AttemptCause::heard_of(FirstCause other, TimePoint now) {
  constexpr Milliseconds way_max{1'000};
  if (!failed_at_ || other.kind != FirstCause::Kind::WorkerFailed) return false;
  assert(cause_ && cause_->kind == FirstCause::Kind::WorkerFailed);
  const TimePoint at = time_of(other, now);
  const bool explains = cause_->of_a_peer && !other.of_a_peer && !asks_to_be_queued_again(other);
  if (!explains && at + way_max >= *failed_at_) return false;
  other.ended_first = cause_->ended_first.empty() ? describe(*cause_) : cause_->ended_first;
  other.exit_code = cause_->exit_code;
  other.signal = cause_->signal;
  cause_ = std::move(other);
  failed_at_ = at;
  return true;
}

// No failure of this attempt is older than the attempt, whatever a node says.
TimePoint AttemptCause::time_of(const FirstCause& cause, TimePoint now) const {
  const auto ran = std::chrono::duration_cast<Milliseconds>(now - began_);
  return now - std::min(Milliseconds(cause.age_ms), ran);
}

}  // namespace ddprun::rendezvous
