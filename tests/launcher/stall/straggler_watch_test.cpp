// When a slow rank is worth a word, with paces that are invented.
#include "launcher/stall/straggler_watch.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

// News of a node that is looked at each second, with one pace for all that time.
struct Looks {
  StragglerWatch watch;
  StragglerWatch::TimePoint now{};

  std::vector<StragglerNews> pass(std::chrono::seconds time, const std::vector<double>& own_s) {
    std::vector<RankPace> ranks;
    for (std::size_t i = 0; i < own_s.size(); ++i) {
      ranks.push_back({.rank = static_cast<int>(i), .own_s = own_s[i], .step_s = 0.2});
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
  CHECK(slow[0].rank == 2);
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
