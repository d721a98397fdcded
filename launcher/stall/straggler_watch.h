// Whether a rank, or a node with all its ranks, is slow for long, told once: its share of each
// step, until it waits for others, is compared with theirs. The steps themselves are equally long
// on all ranks.
//
//   fine --- slow by 1.5 for 30 s ---> told --- within 1.2 for 30 s ---> fine
//
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
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
  int node = 0;
  std::string host;
};

struct StragglerNews {
  std::vector<int> ranks;  // One, or with `whole_node` all of that node.
  bool whole_node = false;
  int node = 0;
  std::string host;
  bool over = false;  // They keep up with the others again.
  // Of the slowest of them:
  int rank = 0;
  double times = 1;
  double own_s = 0;
  double others_s = 0;  // In the middle.
};

// One line: who, where, and by how much.
std::string describe(const StragglerNews& news);

class StragglerWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit StragglerWatch(StragglerLimits limits = {}) : limits_(limits) {}

  void attempt_started() { seen_.clear(); }
  // Of ranks that train now, of one node or of all. At most one is told of at a look, or one node;
  // the slowest first.
  std::optional<StragglerNews> look(const std::vector<RankPace>& ranks, TimePoint now);

 private:
  struct Seen {
    bool told = false;
    std::optional<TimePoint> other_since;  // It has not been as was told, since then.
  };

  // Whether it has been other than was told for so long that it should be told.
  bool is_news(const RankPace& rank, double others_s, TimePoint now);
  std::vector<int> together_with(const RankPace& slowest, const std::vector<RankPace>& ranks);

  StragglerLimits limits_;
  std::map<int, Seen> seen_;  // By rank.
};

}  // namespace ddprun::launcher
