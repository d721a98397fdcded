// When a slow rank is worth a word, with paces that are invented.
#include "launcher/stall/straggler_watch.h"

#include <algorithm>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

// News of ranks that are looked at each second, with one pace for all that time.
struct Looks {
  StragglerWatch watch{};
  int of_node = 1'000;  // Ranks of each node.
  StragglerWatch::TimePoint now{};

  std::vector<StragglerNews> pass(std::chrono::seconds time, const std::vector<double>& own_s) {
    std::vector<RankPace> ranks;
    for (std::size_t i = 0; i < own_s.size(); ++i) {
      const int rank = static_cast<int>(i), node = rank / of_node;
      ranks.push_back({rank, own_s[i], 0.2, node, "host" + std::to_string(node)});
    }
    std::vector<StragglerNews> news;
    for (auto second = 0s; second < time; ++second) {
      now += 1s;
      if (const auto one = watch.look(ranks, now)) news.push_back(*one);
    }
    return news;
  }
};

}  // namespace

TEST_CASE("16.3: a rank that is slow for long is named once, and once that it no longer is",
          "[stall]") {
  Looks looks;
  CHECK(looks.pass(100s, {0.1, 0.1, 0.1, 0.1}).empty());
  CHECK(looks.pass(30s, {0.1, 0.1, 0.2, 0.1}).empty());
  const auto slow = looks.pass(1000s, {0.1, 0.1, 0.2, 0.1});
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].ranks == std::vector{2});
  CHECK_FALSE(slow[0].over);
  CHECK(slow[0].times == 2);
  CHECK(slow[0].others_s == 0.1);
  // In between it is neither.
  CHECK(looks.pass(1000s, {0.1, 0.1, 0.14, 0.1}).empty());
  CHECK(looks.pass(29s, {0.1, 0.1, 0.11, 0.1}).empty());
  CHECK(looks.pass(1s, {0.1, 0.1, 0.14, 0.1}).empty());
  const auto over = looks.pass(40s, {0.1, 0.1, 0.11, 0.1});
  REQUIRE(over.size() == 1);
  CHECK(over[0].over);
  CHECK(looks.pass(40s, {0.1, 0.1, 0.2, 0.1}).size() == 1);
}

TEST_CASE("16.3: who is slow for a moment, or by nothing that counts, is not named", "[stall]") {
  Looks looks;
  for (int i = 0; i < 20; ++i) {
    CHECK(looks.pass(25s, {0.1, 0.3}).empty());
    CHECK(looks.pass(2s, {0.1, 0.1}).empty());
  }
  CHECK(looks.pass(100s, {0.001, 0.002}).empty());  // Of a step of 200 ms.
  CHECK(looks.pass(100s, {0.015, 0.03}).empty());
  CHECK(looks.pass(100s, {0.1, 0.14}).empty());  // Not slow enough.
  CHECK(looks.pass(100s, {0.3}).empty());
  CHECK(looks.pass(100s, {0, 0}).empty());
  CHECK(looks.pass(100s, {}).empty());
}

TEST_CASE("16.3: of two ranks the slow one is compared with the other", "[stall]") {
  Looks looks;
  const auto news = looks.pass(60s, {0.15, 0.05});
  REQUIRE(news.size() == 1);
  CHECK(news[0].rank == 0);
  CHECK(news[0].times == Approx(3));
}

TEST_CASE("16.3: half of the ranks that are slow are each named, one at a look", "[stall]") {
  Looks looks;
  const auto news = looks.pass(60s, {0.05, 0.05, 0.05, 0.15, 0.2});
  REQUIRE(news.size() == 2);
  CHECK(news[0].rank == 4);
  CHECK(news[1].rank == 3);
}

TEST_CASE("16.3: of nodes with one rank each the slow one is named with its host", "[stall]") {
  Looks looks{.of_node = 1};
  const auto slow = looks.pass(100s, {0.05, 0.05, 0.15, 0.05});
  REQUIRE(slow.size() == 1);
  CHECK(describe(slow[0]) ==
        "rank 2 on host2 is slow, by 3.0 times: it needs 150.0 ms of each step before it waits for "
        "others, who need 50.0 ms");
  const auto over = looks.pass(100s, {0.05, 0.05, 0.05, 0.05});
  REQUIRE(over.size() == 1);
  CHECK(describe(over[0]) ==
        "rank 2 on host2 keeps up again: it needs 50.0 ms of each step before it waits for others, "
        "who need 50.0 ms");
}

TEST_CASE("16.3: a node whose ranks are all slow is told of once, and once when all keep up",
          "[stall]") {
  Looks looks{.of_node = 3};
  const auto slow = looks.pass(100s, {0.05, 0.05, 0.05, 0.1, 0.15, 0.1});
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].ranks == std::vector{3, 4, 5});
  CHECK(describe(slow[0]) ==
        "all 3 ranks of node 1 on host1 are slow, rank 4 by 3.0 times: it needs 150.0 ms of each "
        "step before it waits for others, who need 50.0 ms");
  const auto over = looks.pass(100s, {0.05, 0.05, 0.05, 0.05, 0.055, 0.05});
  REQUIRE(over.size() == 1);
  CHECK(over[0].ranks == std::vector{3, 4, 5});
  CHECK(describe(over[0]) ==
        "all 3 ranks of node 1 on host1 keep up again: rank 4 needs 55.0 ms of each step before it "
        "waits for others, who need 50.0 ms");
}

TEST_CASE("16.3: of a slow node ranks that keep up again before the others are told of alone",
          "[stall]") {
  Looks looks{.of_node = 2};
  REQUIRE(looks.pass(100s, {0.05, 0.05, 0.05, 0.05, 0.15, 0.15}).size() == 1);
  const auto one = looks.pass(100s, {0.05, 0.05, 0.05, 0.05, 0.15, 0.05});
  REQUIRE(one.size() == 1);
  CHECK(one[0].ranks == std::vector{5});
  CHECK(one[0].over);
  // It had been told, so that it says nothing new of the node.
  const auto other = looks.pass(100s, {0.05, 0.05, 0.05, 0.05, 0.05, 0.05});
  REQUIRE(other.size() == 1);
  CHECK(other[0].ranks == std::vector{4});
}

TEST_CASE("16.3: on a node of which one rank keeps up the slow ones are each named", "[stall]") {
  Looks looks{.of_node = 3};
  const auto news = looks.pass(100s, {0.05, 0.05, 0.05, 0.15, 0.05, 0.2});
  REQUIRE(news.size() == 2);
  CHECK(news[0].ranks == std::vector{5});
  CHECK(news[1].ranks == std::vector{3});
  // Once the third is slow, too, it is the node.
  const auto all = looks.pass(100s, {0.05, 0.05, 0.05, 0.15, 0.15, 0.2});
  REQUIRE(all.size() == 1);
  CHECK(all[0].ranks == std::vector{3, 4, 5});
}

TEST_CASE("16.3: looks that are seconds apart, of which some fail, find the same", "[stall]") {
  StragglerWatch watch;
  StragglerWatch::TimePoint now{};
  const std::vector<RankPace> ranks = {{0, 0.05, 0.2, 0, "a"}, {1, 0.15, 0.2, 1, "b"}};
  std::vector<int> told_at;
  for (int i = 0; i < 10; ++i, now += 10s) {
    if (i != 2 && watch.look(ranks, now)) told_at.push_back(i);
    if (i == 2) CHECK_FALSE(watch.look({ranks[0]}, now));
  }
  CHECK(told_at == std::vector{3});
}

TEST_CASE("16.3: the middle of the others is that of a list without the rank", "[stall]") {
  for (int count = 2; count < 9; ++count) {
    for (int slow = 0; slow < count; ++slow) {
      std::vector<double> own_s;
      for (int i = 0; i < count; ++i) own_s.push_back(i % 2 == 0 ? 0.01 : 0.011);
      own_s[static_cast<std::size_t>(slow)] = 1;
      std::vector<double> others = own_s;
      others.erase(others.begin() + slow);
      std::sort(others.begin(), others.end());
      Looks looks;
      const auto news = looks.pass(31s, own_s);
      REQUIRE(news.size() == 1);
      CHECK(news[0].rank == slow);
      CHECK(news[0].others_s == others[others.size() / 2]);
    }
  }
}
