// When spares are started, which of them takes whose place, and when to do without them.
//
// Spare K is for local rank K and no other: its GPU, its CPUs and its arguments are those of that
// worker from the start. All workers of a node end with an attempt, so any place needs one.
//
//            next()                ready()
//   Absent --------> Warming ----------------> Ready --take()--> (a worker; Absent)
//     ^                 |                        |
//     +---- pause ------+-------- ended() -------+----> GivenUp, after the third in a row
//
// spare_pool.cpp feeds in what happens and starts what comes back.
// A core: no processes, timers or clock.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

struct SpareLimits {
  // From an attempt's start to that of its first spare: the workers load the same libraries now.
  std::chrono::milliseconds settle{1'000};
  // One spare warms up at a time, so that no more than a core of the node is busy with it; one that
  // is not ready after this does not keep the others waiting any longer.
  std::chrono::milliseconds warm_up{60'000};
  std::chrono::milliseconds pause{1'000};  // After a spare's death; doubled for the second.
  int deaths_max = 3;                      // In a row, for one local rank.
};

class SparePlan {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit SparePlan(int spares, SpareLimits limits = {});

  void attempt_started(TimePoint now);
  void attempt_ended();  // No spare is started until the next one has begun.

  // For which local rank to start a spare now.
  std::optional<int> next(TimePoint now) const;
  // When to ask again if nothing happens; nothing: never.
  std::optional<TimePoint> due(TimePoint now) const;

  void started(int local_rank, TimePoint now);
  void ready(int local_rank);

  // What follows from the end of a spare that had no rank yet.
  struct End {
    bool given_up = false;  // No spare for this local rank any more.
    bool for_all = false;   // Nor for any other.
    bool tell = false;      // The user is told of the first in a row and of the last.
    std::string reason;     // Never empty.
  };
  // `succeeded`: with exit status 0.
  End ended(int local_rank, bool succeeded, TimePoint now);

  // Whether this local rank's next worker is its spare, which it then is no more.
  bool take(int local_rank);

  int ready_count() const;

 private:
  enum class State { Absent, Warming, Ready, GivenUp };
  struct Spare {
    State state = State::Absent;
    int deaths = 0;  // In a row.
    TimePoint not_before{};
    TimePoint since{};  // Warming.
  };
  Spare& at(int local_rank) { return spares_.at(static_cast<std::size_t>(local_rank)); }
  std::optional<TimePoint> held_up_until(TimePoint now) const;

  SpareLimits limits_;
  std::vector<Spare> spares_;
  std::optional<TimePoint> settled_at_;  // Set while an attempt runs.
};

}  // namespace ddprun::launcher
