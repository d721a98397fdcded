// Whether one rank of this node is slow for long, told once: its share of each step, until it waits
// for others, is compared with theirs. The steps themselves are equally long on all ranks.
//
//   fine --- slow by 1.5 for 30 s ---> told --- within 1.2 for 30 s ---> fine
//
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace ddprun::launcher {

struct StragglerLimits {
  double slow = 1.5;   // Times what the others need in the middle, and ...
  double fine = 1.2;   // ... no more than this again.
  double share = 0.1;  // Of a step: what is less holds up nobody.
  std::chrono::milliseconds lasting{30'000};
};

struct RankPace {
  int rank = 0;
  double own_s = 0;   // Of a step, until it waits.
  double step_s = 0;  // All of it.
};

struct StragglerNews {
  int rank = 0;
  bool over = false;  // It keeps up with the others again.
  double times = 1;
  double own_s = 0;
  double others_s = 0;
};

class StragglerWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit StragglerWatch(StragglerLimits limits = {}) : limits_(limits) {}

  void attempt_started() { seen_.clear(); }
  // Of ranks that train now. At most one is told of at a look; the slowest first.
  std::optional<StragglerNews> look(const std::vector<RankPace>& ranks, TimePoint now);

 private:
  struct Seen {
    bool told = false;
    std::optional<TimePoint> other_since;  // It has not been as was told, since then.
  };

  StragglerLimits limits_;
  std::map<int, Seen> seen_;  // By rank.
};

}  // namespace ddprun::launcher
