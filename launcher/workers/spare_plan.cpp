// A spare is a comfort: nothing here may hold up or end a job, so every doubt ends in a cold start.
#include "launcher/workers/spare_plan.h"

#include <algorithm>
#include <utility>

namespace ddprun::launcher {

SparePlan::SparePlan(int spares, SpareLimits limits, int places)
    : limits_(limits),
      wanted_(spares),
      spares_(static_cast<std::size_t>(std::max({spares, places, 0}))) {}

void SparePlan::attempt_started(TimePoint now, std::vector<int> missing) {
  started_at_ = now;
  missing_ = std::move(missing);
}

void SparePlan::attempt_ended() { started_at_.reset(); }

// Until when those that warm up keep others from being started.
std::optional<SparePlan::TimePoint> SparePlan::held_up_until(TimePoint now) const {
  std::optional<TimePoint> until;
  for (const Spare& spare : spares_) {
    if (spare.state != State::Warming || spare.since + limits_.warm_up <= now) continue;
    until = std::max(until.value_or(TimePoint::min()), spare.since + limits_.warm_up);
  }
  return until;
}

std::optional<SparePlan::TimePoint> SparePlan::may_start(int place) const {
  if (!started_at_ || at(place).state != State::Absent) return std::nullopt;
  if (std::find(missing_.begin(), missing_.end(), place) != missing_.end()) {
    return std::max(at(place).not_before, *started_at_);
  }
  if (place >= wanted_) return std::nullopt;
  return std::max(at(place).not_before, *started_at_ + limits_.settle);
}

std::optional<int> SparePlan::next(TimePoint now) const {
  if (held_up_until(now)) return std::nullopt;
  for (int place = 0; place < static_cast<int>(spares_.size()); ++place) {
    const auto from = may_start(place);
    if (from && *from <= now) return place;
  }
  return std::nullopt;
}

std::optional<SparePlan::TimePoint> SparePlan::due(TimePoint now) const {
  std::optional<TimePoint> first;
  for (int place = 0; place < static_cast<int>(spares_.size()); ++place) {
    const auto from = may_start(place);
    if (from) first = std::min(first.value_or(TimePoint::max()), *from);
  }
  if (!first) return std::nullopt;
  return std::max(*first, held_up_until(now).value_or(TimePoint::min()));
}

void SparePlan::started(int place, TimePoint now) {
  at(place).state = State::Warming;
  at(place).since = now;
}

void SparePlan::ready(int place) {
  if (at(place).state == State::Warming) at(place).state = State::Ready;
}

SparePlan::End SparePlan::ended(int place, bool succeeded, TimePoint now) {
  Spare& spare = at(place);
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

bool SparePlan::take(int place) {
  if (place < 0 || place >= static_cast<int>(spares_.size())) return false;
  Spare& spare = at(place);
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
