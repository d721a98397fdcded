// Ranks of given speeds, whose steps are as long as the slowest one needs, seen again and again.
#include "trainer/shards/shard_balance.h"

#include <algorithm>
#include <numeric>

#include "tests/testing/catch.h"

namespace ddprun::trainer {
namespace {

using Counts = std::vector<int>;

Counts counts_of(const ShardShares& shares) {
  Counts counts;
  for (const ShardRange& share : shares) counts.push_back(share.count());
  return counts;
}

double slowest(const Counts& counts, const std::vector<double>& shard_s) {
  double most = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) most = std::max(most, counts[i] * shard_s[i]);
  return most;
}

// Of all divisions that there are.
double least(int shards, const std::vector<double>& shard_s, Counts counts = {}) {
  if (counts.size() + 1 == shard_s.size()) {
    counts.push_back(shards);
    return slowest(counts, shard_s);
  }
  const int others = static_cast<int>(shard_s.size() - counts.size()) - 1;
  double best = 1e9;
  for (int own = 1; own + others <= shards; ++own) {
    Counts more = counts;
    more.push_back(own);
    best = std::min(best, least(shards - own, shard_s, more));
  }
  return best;
}

struct Job {
  ShardBalance balance;
  std::vector<double> shard_s;
  double besides_s = 0.001;  // Of a step: what shards do not change.
  int moves = 0;
  std::string why;

  Job(int shards, std::vector<double> each)
      : balance(shards, static_cast<int>(each.size())), shard_s(std::move(each)) {}

  Counts counts() const { return counts_of(balance.shares()); }

  void look(int times = 1) {
    for (int i = 0; i < times; ++i) {
      const double step_s = slowest(counts(), shard_s) + besides_s;
      std::vector<StepPace> paces;
      for (std::size_t rank = 0; rank < shard_s.size(); ++rank) {
        paces.push_back({counts()[rank] * shard_s[rank], step_s});
      }
      if (const auto moved = balance.look(paces)) {
        moves += 1;
        why = *moved;
      }
    }
  }
};

constexpr int looks = ShardBalance::looks_least;

}  // namespace

TEST_CASE("16.3: the fastest shares are as fast as any", "[shards]") {
  const std::vector<std::vector<double>> speeds = {
      {1}, {1, 1}, {1, 2}, {3, 1, 1}, {1, 5, 2}, {1, 1, 1, 9}, {0.1, 7, 3, 1}};
  for (const auto& shard_s : speeds) {
    for (int shards = static_cast<int>(shard_s.size()); shards <= 9; ++shards) {
      CAPTURE(shards, shard_s);
      const Counts counts = counts_of(fastest_shares(shards, shard_s));
      CHECK(std::accumulate(counts.begin(), counts.end(), 0) == shards);
      CHECK(*std::min_element(counts.begin(), counts.end()) >= 1);
      CHECK(slowest(counts, shard_s) == least(shards, shard_s));
    }
  }
  CHECK(counts_of(fastest_shares(8, {1, 1, 1})) == Counts{3, 3, 2});  // As even_shares().
}

TEST_CASE("16.3: ranks that are equally fast, or nearly, keep their shards", "[shards]") {
  Job job(8, {0.020, 0.022, 0.021});
  job.look(100);
  CHECK(job.moves == 0);
  CHECK(job.counts() == Counts{3, 3, 2});
}

TEST_CASE("16.3: a slow rank gets fewer shards, once, and is named", "[shards]") {
  Job job(8, {0.010, 0.030, 0.010, 0.010});
  job.look(looks - 1);
  CHECK(job.moves == 0);
  job.look();
  CHECK(job.counts() == Counts{3, 1, 2, 2});
  CHECK(job.why ==
        "rank 1 takes 1 of 8 shards, 2 before: it needs 30.0 ms for one, and others 10.0 ms");
  job.look(100);
  CHECK(job.moves == 1);
}

TEST_CASE("16.3: it gets them back when it keeps up again", "[shards]") {
  Job job(8, {0.010, 0.030});
  job.look(2 * looks);
  CHECK(job.counts() == Counts{6, 2});
  job.shard_s[1] = 0.010;
  job.look(2 * looks);
  CHECK(job.counts() == Counts{4, 4});
  job.look(100);
  CHECK(job.moves == 2);
}

TEST_CASE("16.3: what is slow for a moment moves no shard", "[shards]") {
  Job job(8, {0.010, 0.010});
  for (int i = 0; i < 20; ++i) {
    job.shard_s[1] = 0.100;
    job.look(looks / 2);
    job.shard_s[1] = 0.010;
    job.look(looks);
  }
  CHECK(job.moves == 0);
}

TEST_CASE("16.3: shards go back where steps are no faster, and wait twice as long", "[shards]") {
  Job job(4, {0.010, 0.030});
  const auto trial = [&] {  // Whatever the division, somebody else is slow then.
    job.look();
    REQUIRE(job.counts() == Counts{3, 1});
    job.besides_s += 0.050;
    job.look(looks);
    REQUIRE(job.counts() == Counts{2, 2});
    CHECK(job.why.starts_with("shards go back to who had them: a step took 8"));
    job.besides_s -= 0.050;
  };
  job.look(looks - 1);
  trial();
  for (int wait = 2 * looks; wait <= ShardBalance::looks_most; wait *= 2) {
    job.look(wait - 1);
    REQUIRE(job.counts() == Counts{2, 2});
    trial();
  }
  job.look(ShardBalance::looks_most - 1);
  REQUIRE(job.counts() == Counts{2, 2});
  job.look();
  job.look(looks);  // This time it is worth it.
  CHECK(job.counts() == Counts{3, 1});
}

TEST_CASE("16.3: a rank that becomes slow late is known by its latest looks", "[shards]") {
  Job job(8, {0.010, 0.010});
  job.look(100);
  job.shard_s[1] = 0.030;
  job.look(looks);
  CHECK(job.counts() == Counts{6, 2});
}

TEST_CASE("16.3: what makes a step faster by next to nothing was not worth it", "[shards]") {
  Job job(4, {0.010, 0.030});
  job.besides_s = 0.940;  // Of a step of a second.
  job.look(looks);
  REQUIRE(job.counts() == Counts{3, 1});
  job.besides_s = 0.950;
  job.look(looks);
  CHECK(job.counts() == Counts{2, 2});
  CHECK(job.why.find("a step took 980.0 ms with the others, and 1000.0 ms before") !=
        std::string::npos);
}

TEST_CASE("16.3: after a division that was worth it the next one waits no longer than the first",
          "[shards]") {
  Job job(4, {0.010, 0.030});
  for (int trial = 0, wait = looks; trial < 3; ++trial, wait *= 2) {
    job.look(wait);
    REQUIRE(job.counts() == Counts{3, 1});
    job.besides_s += 0.050;
    job.look(looks);
    REQUIRE(job.counts() == Counts{2, 2});
    job.besides_s -= 0.050;
  }
  job.look(8 * looks);
  job.look(looks);
  REQUIRE(job.counts() == Counts{3, 1});
  job.shard_s = {0.030, 0.010};
  job.look(looks);
  CHECK(job.counts() == Counts{1, 3});
}

TEST_CASE("16.3: steps that are too short for the clock move no shard", "[shards]") {
  Job job(4, {0, 0});
  job.look(100);
  CHECK(job.moves == 0);
}

}  // namespace ddprun::trainer
