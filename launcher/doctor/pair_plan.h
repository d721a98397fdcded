// Which pairs of hosts are measured, and which of them at the same time: no host has a part in two
// at once, as they would share its card. A core: no sockets, threads or clock.
#pragma once

#include <utility>
#include <vector>

namespace ddprun::launcher {

constexpr int all_pairs_hosts_max = 16;  // 30 rounds; from there on a ring and a sample.

struct PairPlan {
  using Pair = std::pair<int, int>;  // From, to.
  std::vector<std::vector<Pair>> rounds;
  bool is_sample = false;  // Not every pair is in it.
};

// Each pair is there in both directions, but for those of the sample; none twice.
PairPlan plan_pairs(int hosts);

}  // namespace ddprun::launcher
