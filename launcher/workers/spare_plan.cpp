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
  std::optional<TimePoint> start, limit;
  const auto earlier = [](std::optional<TimePoint> one, std::optional<TimePoint> other) {
    return one && other ? std::min(*one, *other) : one ? one : other;
  };
  for (int place = 0; place < static_cast<int>(spares_.size()); ++place) {
    start = earlier(start, may_start(place));
    limit = earlier(limit, overdue_at(place));
  }
  if (start) start = std::max(*start, held_up_until(now).value_or(TimePoint::min()));
  return earlier(start, limit);
}

void SparePlan::started(int place, TimePoint now) {
  at(place).state = State::Warming;
  at(place).since = now;
}

void SparePlan::ready(int place, TimePoint now) {
  Spare& spare = at(place);
  if (spare.state != State::Warming) return;
  spare.state = State::Ready;
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - spare.since);
  spare.since = now;
  slowest_ = std::max(slowest_.value_or(took), took);
}

std::optional<std::chrono::milliseconds> SparePlan::ready_by(int place) const {
  if (!limits_.ready_by || !slowest_) return limits_.ready_by;
  const auto learnt = std::max(limits_.ready_by_least, *slowest_ * limits_.ready_by_times);
  return std::min(*limits_.ready_by, learnt * (1 << at(place).deaths));
}

std::optional<SparePlan::TimePoint> SparePlan::overdue_at(int place) const {
  const auto limit = ready_by(place);
  if (!limit || at(place).state != State::Warming) return std::nullopt;
  return at(place).since + *limit;
}

// Also between two attempts: the next one may wait for it.
std::optional<int> SparePlan::overdue(TimePoint now) const {
  for (int place = 0; place < static_cast<int>(spares_.size()); ++place) {
    const auto limit = overdue_at(place);
    if (limit && *limit <= now) return place;
  }
  return std::nullopt;
}

SparePlan::End SparePlan::ended(int place, bool succeeded, TimePoint now) {
  Spare& spare = at(place);
  const bool asked = spare.state == State::Ready;
  // Whoever has stood ready for long did not die of itself, as one does that always dies.
  if (asked && now - spare.since >= limits_.forget) spare.deaths = 0;
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
