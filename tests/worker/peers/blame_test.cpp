// Whom a timeout is blamed on among hundreds of ranks, and how sets of them travel.
#include "worker/peers/blame.h"

#include "tests/testing/catch.h"

using namespace ddprun::worker;

TEST_CASE("a set of ranks is its ranks, whatever it held before", "[worker][blame]") {
  RankSet ranks{0, 63, 64, 2'046};
  CHECK(ranks.ranks() == std::vector<int>{0, 63, 64, 2'046});
  CHECK_FALSE(ranks.contains(65));
  CHECK_FALSE(ranks.contains(100'000));
  CHECK((ranks | RankSet{65}).ranks() == std::vector<int>{0, 63, 64, 65, 2'046});
  CHECK((ranks - RankSet{64, 2'046, 3'000}) == RankSet{0, 63});
  CHECK((ranks - ranks).empty());
  CHECK(RankSet::all_of(65) - RankSet::all_of(64) == RankSet{64});
  CHECK(RankSet::all_of(0).empty());
}

TEST_CASE("a set of ranks travels as bytes, and what is none is refused", "[worker][blame]") {
  for (const RankSet& ranks : {RankSet{}, RankSet{5}, RankSet{64}, RankSet::all_of(2'047)}) {
    CHECK(RankSet::from_bytes(ranks.to_bytes()) == ranks);
  }
  CHECK(RankSet::from_bytes(std::string(16, '\0')) == RankSet{});
  CHECK_FALSE(RankSet::from_bytes("1234567"));
}

TEST_CASE("of hundreds of ranks the one that all others wait for is blamed", "[worker][blame]") {
  constexpr int world_size = 300;
  const RankSet everybody = RankSet::all_of(world_size);
  std::vector<std::optional<RankSet>> answers(world_size, everybody);
  answers[257] = RankSet{};
  CHECK(find_blame(0, everybody, answers).absent == RankSet{257});
  answers[257].reset();
  CHECK(find_blame(299, RankSet{64}, answers).silent == RankSet{257});
  // Who says that it waits for ranks that there are not misleads nobody.
  answers.assign(world_size, RankSet{4'000});
  CHECK(find_blame(0, RankSet{1}, answers).circular == RankSet{1});
  answers.assign(world_size, RankSet{world_size});  // The first of them.
  CHECK(find_blame(0, RankSet{1}, answers).circular == RankSet{1});
}

TEST_CASE("each kind of blame has its own words, and those without a rank none",
          "[worker][blame]") {
  const std::string silent = " did not answer (stopped, or cut off from the others)";
  const std::string absent = " did not call it (busy elsewhere, or made fewer calls)";
  const std::string circular = " had not got as far (slow, or in another order of calls)";
  CHECK(to_string({.silent = {1}}, {}) == "rank 1" + silent);
  CHECK(to_string({.absent = {1}}, {}) == "rank 1" + absent);
  CHECK(to_string({.circular = {1, 2}}, {}) == "rank 1, rank 2" + circular);
  CHECK(to_string({.silent = {0}, .absent = {1}}, {"rank 0 on a", ""}) ==
        "rank 0 on a" + silent + "; rank 1" + absent);
}

TEST_CASE("of hundreds of ranks the first ones are named", "[worker][blame]") {
  CHECK(names_of(RankSet{3, 64}) == "rank 3, rank 64");
  const std::string many = names_of(RankSet::all_of(300));
  CHECK(many.find("rank 0, rank 1, ") == 0);
  CHECK(many.find(", rank 15 and 284 more") ==
        many.size() - std::string(", rank 15 and 284 more").size());
  CHECK(names_of(RankSet::all_of(16)).find("more") == std::string::npos);
}
