// Fewer shards for a rank that is slow, so that the others wait for it less. Whoever has a shard,
// the step is the same to the bit.
//
//   even --- another division promises a tenth ---> on trial --- steps are faster ---> settled
//    ^        less for the slowest                      |                                 |
//    |                                                  v steps are not                   v as
//    before
//    +----------------------- back, and look for twice as long before the next one
//
// A look is the mean over the steps since the one before. A rank's pace is the middle one of
// several looks, so that a moment in which something else ran there moves no shard.
//
// Every rank is given the same figures, and comes to the same shares. A core: no sockets, threads
// or clock.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "trainer/shards/shard_tree.h"

namespace ddprun::trainer {

// Of a rank, in a step on average: seconds.
struct StepPace {
  double own_s = 0;   // Without the wait for others.
  double step_s = 0;  // All of it.
};

// The shares with which the slowest rank is through first. `shard_s`: what each rank needs for a
// shard, > 0. Not more ranks than shards.
ShardShares fastest_shares(int shards, const std::vector<double>& shard_s);

class ShardBalance {
 public:
  static constexpr int looks_least = 5;  // Before shards move, and of a trial.
  static constexpr int looks_most = 320;
  static constexpr double gain_least = 0.1;  // Of the slowest rank's time, to be worth a trial ...
  static constexpr double gain_kept = 0.03;  // ... and of a step, to have been worth it.

  ShardBalance(int shards, int world_size);

  const ShardShares& shares() const { return shares_; }

  // `paces`: of all ranks, by rank. Something: shares() are others now, and why.
  std::optional<std::string> look(const std::vector<StepPace>& paces);

 private:
  struct Trial {
    ShardShares before;
    double step_s;  // With those.
  };

  std::vector<double> shard_s() const;  // By rank, of the latest looks.
  double step_s() const;                // The same, of the slowest rank.
  std::optional<std::string> end_trial();
  std::optional<std::string> divide_anew();
  void take(ShardShares shares);

  ShardShares shares_;
  std::deque<std::vector<StepPace>> looks_;  // The latest ones with these shares.
  int looked_ = 0;                           // How many there were of them.
  int wait_ = looks_least;                   // How many it takes before shards move.
  std::optional<Trial> trial_;
};

}  // namespace ddprun::trainer
