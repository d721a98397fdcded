// When spares are started, which of them takes whose place, and when to do without them.
//
// Spare K is for place K and no other (local_places.h): its GPU, its CPUs and its arguments are
// those of that worker from the start. All workers of a node may end with an attempt, so any place
// needs one. Besides those that were asked for, each place that has no worker in an attempt gets
// one, to be filled by: at once, since nothing of the attempt is held up by it.
//
//            next()                ready()
//   Absent --------> Warming ----------------> Ready --take()--> (a worker; Absent)
//     ^                 |                        |
//     +---- pause ------+-------- ended() -------+----> GivenUp, after the third in a row
//                                                       (none of which was ready for long)
//
// One that neither gets ready nor ends is overdue() in the end: it is killed, and counts as ended.
// A node that runs with fewer workers until it is ready would else never have all of them again.
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
  // Who is not ready by then will not be; nothing: it may take for ever.
  std::optional<std::chrono::milliseconds> ready_by{600'000};
  // Where one has been ready: so many times as long as the slowest took, but no less than this, and
  // twice as long after each that was too slow. Caches are cold where a machine has just lost
  // something, and then all of a node warm up at low priority.
  int ready_by_times = 10;
  std::chrono::milliseconds ready_by_least{60'000};
  std::chrono::milliseconds pause{1'000};     // After a spare's death; doubled for the second.
  int deaths_max = 3;                         // In a row, for one place ...
  std::chrono::milliseconds forget{300'000};  // ... which one that was ready for so long ends.
};

class SparePlan {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `spares`: for the first of the `places` in any case.
  explicit SparePlan(int spares, SpareLimits limits = {}, int places = 0);

  // `missing`: the places without a worker.
  void attempt_started(TimePoint now, std::vector<int> missing = {});
  void attempt_ended();  // No spare is started until the next one has begun.

  // For which place to start a spare now.
  std::optional<int> next(TimePoint now) const;
  // When to ask again if nothing happens; nothing: never.
  std::optional<TimePoint> due(TimePoint now) const;

  void started(int place, TimePoint now);
  void ready(int place, TimePoint now);

  // Which one is to be killed, and told of by ended(), since it is not ready after ready_by().
  std::optional<int> overdue(TimePoint now) const;
  std::optional<std::chrono::milliseconds> ready_by(int place) const;

  // What follows from the end of a spare that had no rank yet.
  struct End {
    bool given_up = false;  // No spare for this place any more.
    bool for_all = false;   // Nor for any other.
    bool tell = false;      // The user is told of the first in a row and of the last.
    std::string reason;     // Never empty.
  };
  // `succeeded`: with exit status 0.
  End ended(int place, bool succeeded, TimePoint now);

  // Whether this place's next worker is its spare, which it then is no more.
  bool take(int place);

  bool is_ready(int place) const { return at(place).state == State::Ready; }
  bool has_given_up(int place) const { return at(place).state == State::GivenUp; }
  int ready_count() const;

 private:
  enum class State { Absent, Warming, Ready, GivenUp };
  struct Spare {
    State state = State::Absent;
    int deaths = 0;  // In a row.
    TimePoint not_before{};
    TimePoint since{};  // Warming, or Ready.
  };
  Spare& at(int place) { return spares_.at(static_cast<std::size_t>(place)); }
  const Spare& at(int place) const { return spares_.at(static_cast<std::size_t>(place)); }
  std::optional<TimePoint> overdue_at(int place) const;  // Nothing: never.
  std::optional<TimePoint> held_up_until(TimePoint now) const;
  // When a spare may be started for it; nothing: not in this attempt, or it has one.
  std::optional<TimePoint> may_start(int place) const;

  SpareLimits limits_;
  int wanted_;                 // For so many places in any case.
  std::vector<Spare> spares_;  // By place.
  std::vector<int> missing_;
  std::optional<TimePoint> started_at_;               // Set while an attempt runs.
  std::optional<std::chrono::milliseconds> slowest_;  // Of those that have been ready.
};

}  // namespace ddprun::launcher
