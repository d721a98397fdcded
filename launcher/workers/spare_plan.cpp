// A spare is a comfort: nothing here may hold up or end a job, so every doubt ends in a cold start.
#include "launcher/workers/spare_plan.h"

#include <algorithm>

namespace ddprun::launcher {

SparePlan::SparePlan(int spares, SpareLimits limits)
    : limits_(limits), spares_(static_cast<std::size_t>(std::max(spares, 0))) {}

void SparePlan::attempt_started(TimePoint now) { settled_at_ = now + limits_.settle; }

void SparePlan::attempt_ended() { settled_at_.reset(); }

// Until when those that warm up keep others from being started.
std::optional<SparePlan::TimePoint> SparePlan::held_up_until(TimePoint now) const {
  std::optional<TimePoint> until;
  for (const Spare& spare : spares_) {
    if (spare.state != State::Warming || spare.since + limits_.warm_up <= now) continue;
    until = std::max(until.value_or(TimePoint::min()), spare.since + limits_.warm_up);
  }
  return until;
}

std::optional<int> SparePlan::next(TimePoint now) const {
  if (!settled_at_ || now < *settled_at_ || held_up_until(now)) return std::nullopt;
  for (std::size_t i = 0; i < spares_.size(); ++i) {
    if (spares_[i].state == State::Absent && spares_[i].not_before <= now) {
      return static_cast<int>(i);
    }
  }
  return std::nullopt;
}

std::optional<SparePlan::TimePoint> SparePlan::due(TimePoint now) const {
  if (!settled_at_) return std::nullopt;
  std::optional<TimePoint> first;
  for (const Spare& spare : spares_) {
    if (spare.state != State::Absent) continue;
    first = std::min(first.value_or(TimePoint::max()), spare.not_before);
  }
  if (!first) return std::nullopt;
  return std::max({*first, *settled_at_, held_up_until(now).value_or(TimePoint::min())});
}

void SparePlan::started(int local_rank, TimePoint now) {
  at(local_rank).state = State::Warming;
  at(local_rank).since = now;
}

void SparePlan::ready(int local_rank) {
  if (at(local_rank).state == State::Warming) at(local_rank).state = State::Ready;
}

SparePlan::End SparePlan::ended(int local_rank, bool succeeded, TimePoint now) {
  Spare& spare = at(local_rank);
  const bool asked = spare.state == State::Ready;
  ++spare.deaths;
  if (succeeded && !asked) {
    // Its program has done its work without a rank, and would do so again.
    for (Spare& other : spares_) {
      if (&other == &spare || other.state == State::Absent) other.state = State::GivenUp;
    }
    return {.given_up = true,
            .for_all = true,
            .tell = true,
            .reason = "it did not ask for a rank, as wait_for_rank() does"};
  }
  if (spare.deaths >= limits_.deaths_max) {
    spare.state = State::GivenUp;
    return {.given_up = true,
            .for_all = false,
            .tell = true,
            .reason = std::to_string(spare.deaths) + " in a row ended before they " +
                      (asked ? "were needed" : "asked for a rank (as wait_for_rank() does)")};
  }
  spare.state = State::Absent;
  spare.not_before = now + limits_.pause * (1 << (spare.deaths - 1));
  return {.given_up = false,
          .for_all = false,
          .tell = spare.deaths == 1,
          .reason = "another one follows"};
}

bool SparePlan::take(int local_rank) {
  if (local_rank < 0 || local_rank >= static_cast<int>(spares_.size())) return false;
  Spare& spare = at(local_rank);
  if (spare.state != State::Ready) return false;
  spare = Spare{};
  return true;
}

int SparePlan::ready_count() const {
  return static_cast<int>(std::count_if(spares_.begin(), spares_.end(), [](const Spare& spare) {
    return spare.state == State::Ready;
  }));
}

}  // namespace ddprun::launcher
