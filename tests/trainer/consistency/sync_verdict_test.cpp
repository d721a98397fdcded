// Who is named when the ranks' models differ.
#include "trainer/consistency/sync_verdict.h"

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;

namespace {

const std::vector<std::string> tensors{"conv", "norm", "fc"};

std::string verdict(const std::vector<std::vector<std::uint64_t>>& hashes) {
  return describe_verdict(judge_ranks(hashes), tensors, 12).value_or("equal");
}

}  // namespace

TEST_CASE("ranks that agree are not named", "[trainer][verify_sync]") {
  CHECK(verdict({{1, 2, 3}}) == "equal");
  CHECK(verdict({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}) == "equal");
}

TEST_CASE("the rank that differs from the majority is named with its first tensor",
          "[trainer][verify_sync]") {
  for (std::size_t odd = 0; odd < 3; ++odd) {
    std::vector<std::vector<std::uint64_t>> hashes(3, {1, 2, 3});
    hashes[odd] = {1, 7, 8};
    const SyncVerdict found = judge_ranks(hashes);
    CHECK(found.majority);
    REQUIRE(found.odd.size() == 1);
    CHECK(found.odd[0].rank == static_cast<int>(odd));
    CHECK(found.odd[0].tensor == 1);
  }
  const std::string text = verdict({{1, 2, 3}, {1, 2, 3}, {1, 2, 4}});
  CHECK(contains(text, "after step 12: rank 2 first in 'fc' (all others agree)"));
}

TEST_CASE("several ranks that differ are all named, each with its own tensor",
          "[trainer][verify_sync]") {
  const std::string text = verdict({{9, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 4}, {1, 2, 3}});
  CHECK(contains(text, "rank 0 first in 'conv', rank 3 first in 'fc' (all others agree)"));
}

TEST_CASE("without a majority all ranks are named", "[trainer][verify_sync]") {
  CHECK(contains(verdict({{1, 2, 3}, {1, 5, 3}}),
                 "rank 0 first in 'norm', rank 1 first in 'norm' (no majority"));
  const SyncVerdict halves = judge_ranks({{1, 2, 3}, {1, 2, 3}, {1, 2, 4}, {1, 2, 4}});
  CHECK_FALSE(halves.majority);
  CHECK(halves.odd.size() == 4);
  const SyncVerdict all = judge_ranks({{1, 2, 3}, {1, 2, 4}, {6, 2, 3}});
  CHECK_FALSE(all.majority);
  REQUIRE(all.odd.size() == 3);
  CHECK(all.odd[1].tensor == 2);
  CHECK(all.odd[2].tensor == 0);
}
