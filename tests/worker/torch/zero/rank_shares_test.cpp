// Which rank updates which parameter: loads of the ranks, and what the answer depends on.
#include "worker/torch/zero/rank_shares.h"

#include <algorithm>
#include <numeric>

#include "tests/testing/catch.h"

using namespace ddprun::worker;

namespace {

std::vector<std::int64_t> loads(const std::vector<std::int64_t>& bytes, int world) {
  const std::vector<int> ranks = share_among_ranks(bytes, world);
  REQUIRE(ranks.size() == bytes.size());
  std::vector<std::int64_t> load(static_cast<std::size_t>(world));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    load.at(static_cast<std::size_t>(ranks[i])) += bytes[i];
  return load;
}

}  // namespace

TEST_CASE("the largest parameters go first, each to the rank that has least", "[worker][zero]") {
  CHECK(share_among_ranks({10, 30, 20, 20, 10}, 2) == std::vector<int>{0, 0, 1, 1, 0});
  CHECK(loads({10, 30, 20, 20, 10}, 2) == std::vector<std::int64_t>{50, 40});
  CHECK(share_among_ranks({4, 4, 4}, 3) == std::vector<int>{0, 1, 2});
}

// Each rank asks for itself, perhaps with another standard library.
TEST_CASE("of many parameters of one size the first goes first", "[worker][zero]") {
  const std::vector<int> ranks = share_among_ranks(std::vector<std::int64_t>(100, 4), 3);

  for (std::size_t i = 0; i < ranks.size(); ++i) CHECK(ranks[i] == static_cast<int>(i % 3));
}

TEST_CASE("no rank has more than Graham's bound of its share", "[worker][zero]") {
  std::vector<std::int64_t> bytes;
  for (std::int64_t i = 0; i < 161; ++i)
    bytes.push_back((i * 7919) % 1009 + 1);  // As of a network.
  const std::int64_t all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  for (int world = 1; world <= 64; ++world) {
    const std::vector<std::int64_t> load = loads(bytes, world);
    const std::int64_t most = *std::max_element(load.begin(), load.end());
    const std::int64_t best = std::max((all + world - 1) / world, std::int64_t{1009});
    CHECK(3 * most <= 4 * best);
  }
}

TEST_CASE("ranks that are more than the parameters have none, and empty ones are somebody's",
          "[worker][zero]") {
  CHECK(share_among_ranks({5}, 4) == std::vector<int>{0});
  CHECK(share_among_ranks({}, 4).empty());
  CHECK(share_among_ranks({0, 5, 0}, 2) == std::vector<int>{1, 0, 1});
}
