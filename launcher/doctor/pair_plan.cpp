// All pairs are the rounds of a tournament; of many hosts each has its neighbours of a ring, so
// that all are met both ways, and a few others by chance, so that a slow part of the network shows.
#include "launcher/doctor/pair_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>

namespace ddprun::launcher {
namespace {

using Round = std::vector<PairPlan::Pair>;

void add_both_ways(PairPlan& plan, const Round& round) {
  if (round.empty()) return;
  plan.rounds.push_back(round);
  Round back;
  for (const auto& [from, to] : round) back.emplace_back(to, from);
  plan.rounds.push_back(std::move(back));
}

// The first one keeps its place, the others go round it; who meets the one too many has a rest.
void add_tournament(PairPlan& plan, int hosts) {
  const int places = hosts + hosts % 2;
  for (int turn = 0; turn + 1 < places; ++turn) {
    const auto at = [&](int place) {
      return place == 0 ? 0 : (place - 1 + turn) % (places - 1) + 1;
    };
    Round round;
    for (int place = 0; place < places / 2; ++place) {
      const int one = at(place), other = at(places - 1 - place);
      if (one < hosts && other < hosts) round.emplace_back(one, other);
    }
    add_both_ways(plan, round);
  }
}

void add_ring(PairPlan& plan, int hosts) {
  for (const int first : {0, 1}) {
    Round round;
    for (int host = first; host + 1 < hosts; host += 2) round.emplace_back(host, host + 1);
    if (first == 1 && hosts % 2 == 0) round.emplace_back(hosts - 1, 0);
    add_both_ways(plan, round);
  }
  if (hosts % 2 == 1) add_both_ways(plan, {{hosts - 1, 0}});
}

// The same ones in each run, so that two runs can be compared. Who would meet a neighbour again, or
// whom it has met here, has a rest.
void add_sample(PairPlan& plan, int hosts) {
  constexpr int rounds = 4;
  std::set<PairPlan::Pair> planned;
  for (const Round& round : plan.rounds) planned.insert(round.begin(), round.end());
  std::uint64_t state = 1;
  std::vector<int> order(static_cast<std::size_t>(hosts));
  std::iota(order.begin(), order.end(), 0);
  for (int number = 0; number < rounds; ++number) {
    for (std::size_t i = order.size(); i > 1; --i) {
      state = state * 6'364'136'223'846'793'005U + 1'442'695'040'888'963'407U;  // Knuth's.
      std::swap(order[i - 1], order[(state >> 33) % i]);
    }
    Round round;
    for (std::size_t i = 0; i + 1 < order.size(); i += 2) {
      const PairPlan::Pair pair(order[i], order[i + 1]);
      if (planned.insert(pair).second) round.push_back(pair);
    }
    plan.rounds.push_back(std::move(round));
  }
}

}  // namespace

PairPlan plan_pairs(int hosts) {
  PairPlan plan;
  if (hosts < 2) return plan;
  if (hosts <= all_pairs_hosts_max) {
    add_tournament(plan, hosts);
    return plan;
  }
  plan.is_sample = true;
  add_ring(plan, hosts);
  add_sample(plan, hosts);
  return plan;
}

}  // namespace ddprun::launcher
