// DistributedSampler against what Python's sampler yielded (make_sampler_fixtures.py).
#include "worker/torch/distributed_sampler.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/testing/catch.h"

namespace ddprun::worker {
namespace {

std::uint64_t fnv1a(const std::vector<std::int64_t>& indices) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const std::int64_t index : indices) {
    for (int byte = 0; byte < 8; ++byte) {
      hash ^= (static_cast<std::uint64_t>(index) >> (8 * byte)) & 0xff;
      hash *= 1099511628211ull;
    }
  }
  return hash;
}

std::vector<std::int64_t> ends_of(const std::vector<std::int64_t>& indices) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min<std::size_t>(8, indices.size()));
  std::vector<std::int64_t> ends(indices.begin(), indices.begin() + shown);
  ends.insert(ends.end(), indices.end() - shown, indices.end());
  return ends;
}

TEST_CASE("the sampler's indices are those of Python's DistributedSampler", "[worker][sampler]") {
  std::ifstream file(DDPRUN_SAMPLER_FIXTURES);
  REQUIRE(file.good());
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    DistributedSamplerOptions options;
    std::int64_t epoch = 0;
    std::int64_t count = 0;
    std::uint64_t hash = 0;
    fields >> options.length >> options.replicas >> options.rank >> options.seed >> epoch >>
        options.shuffle >> options.drop_last >> count >> hash;
    std::vector<std::int64_t> ends;
    for (std::int64_t index = 0; fields >> index;) ends.push_back(index);

    const DistributedSampler sampler(options);
    const std::vector<std::int64_t> indices = sampler.indices(epoch);

    INFO(line);
    CHECK(sampler.size() == count);
    CHECK(ends_of(indices) == ends);
    CHECK(fnv1a(indices) == hash);
    ++cases;
  }
  CHECK(cases > 200);
}

TEST_CASE("an epoch's order does not depend on the number of replicas", "[worker][sampler]") {
  const DistributedSampler two({100, 2, 1, 7});
  const DistributedSampler five({100, 5, 0, 7});

  CHECK(two.order(3) == five.order(3));
  CHECK(two.order(3) != two.order(4));
}

TEST_CASE("evaluation reads every index exactly once", "[worker][sampler]") {
  for (const std::int64_t length : {0, 1, 3, 10, 101}) {
    std::multiset<std::int64_t> seen;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const auto mine = evaluation_indices(length, 4, rank);
      seen.insert(mine.begin(), mine.end());
    }
    CHECK(seen.size() == static_cast<std::size_t>(length));
    CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == seen.size());
  }
}

TEST_CASE("a sampler refuses a rank that is not one of the replicas", "[worker][sampler]") {
  CHECK_THROWS_AS(DistributedSampler({10, 2, 2}), std::invalid_argument);
  CHECK_THROWS_AS(DistributedSampler({10, 0, 0}), std::invalid_argument);
  CHECK_THROWS_AS(DistributedSampler({-1, 2, 0}), std::invalid_argument);
  CHECK_THROWS_AS(evaluation_indices(10, 2, -1), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::worker
