// How long a round waits, and who hears of it. No test sleeps: time is an argument.
#include "rendezvous/job/forming_round.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;
using Kind = RoundDecision::Kind;

namespace {

const TimePoint start = TimePoint() + 1h;

const RoundLimits elastic{
    .elastic = true, .nodes_min = 2, .nodes_max = 4, .join_timeout = 600s, .last_call = 30s};

std::vector<RoundNode> nodes(std::size_t count) { return std::vector<RoundNode>(count); }

Kind kind(FormingRound& round, std::size_t count, TimePoint now) {
  const auto decision = round.look(nodes(count), now);
  REQUIRE(decision);
  return decision->kind;
}

}  // namespace

TEST_CASE("the last call begins when there are enough, and anew when there were not",
          "[rendezvous][forming_round]") {
  FormingRound round(elastic, start);
  CHECK(kind(round, 1, start + 100s) == Kind::Wait);
  CHECK(kind(round, 2, start + 110s) == Kind::Wait);
  CHECK(kind(round, 3, start + 139s) == Kind::Wait);
  SECTION("they stay") { CHECK(kind(round, 2, start + 140s) == Kind::Close); }
  SECTION("one goes, and another comes") {
    CHECK(kind(round, 1, start + 139s) == Kind::Wait);
    CHECK(kind(round, 2, start + 141s) == Kind::Wait);
    CHECK(kind(round, 2, start + 170s) == Kind::Wait);
    CHECK(kind(round, 2, start + 171s) == Kind::Close);
  }
}

TEST_CASE("16.1: all nodes listen for another coordinator if one was in the job before",
          "[rendezvous][forming_round]") {
  RoundLimits limits = elastic;
  limits.look_around = 5s;
  FormingRound round(limits, start);
  round.came(-1);
  SECTION("nobody was") { CHECK(kind(round, 4, start + 1s) == Kind::Close); }
  SECTION("one was") {
    round.came(0);
    const auto decision = round.look(nodes(4), start + 1s);
    REQUIRE(decision);
    CHECK(decision->kind == Kind::Wait);
    CHECK(decision->reason.find("it may be going on elsewhere") != std::string::npos);
    CHECK(round.look_again() == start + 5s);
    CHECK(kind(round, 4, start + 5s) == Kind::Close);
  }
  SECTION("it was in a round here") {
    round.reopen(start + 1s);
    round.came(0);
    CHECK(kind(round, 4, start + 2s) == Kind::Close);
  }
}

TEST_CASE("a round that forms anew has no last call, but waits out the backoff",
          "[rendezvous][forming_round]") {
  FormingRound round(elastic, start);
  round.wait_until(start + 60s);
  round.reopen(start + 50s);

  CHECK_FALSE(round.look(nodes(4), start + 59s));
  CHECK(round.look_again() == start + 60s);
  CHECK(kind(round, 2, start + 60s) == Kind::Close);

  round.reopen(start + 70s);  // The backoff was for that round alone.
  CHECK(kind(round, 2, start + 70s) == Kind::Close);
}

TEST_CASE("each round has the whole join timeout, and names who went before it",
          "[rendezvous][forming_round]") {
  FormingRound round(elastic, start);
  round.went("node a was lost");
  CHECK(kind(round, 4, start) == Kind::Close);
  round.went("node b was lost");
  round.went("node c left after SIGTERM");
  round.reopen(start + 1h);

  CHECK(kind(round, 1, start + 1h + 599s) == Kind::Wait);
  const auto decision = round.look(nodes(1), start + 1h + 600s);

  REQUIRE(decision);
  CHECK(decision->kind == Kind::TimedOut);
  CHECK(decision->reason.ends_with("; node b was lost; node c left after SIGTERM"));
  CHECK(decision->reason.find("node a") == std::string::npos);

  for (int i = 0; i < 100; ++i) round.went("spare " + std::to_string(i) + " was lost");
  const auto many = round.look(nodes(1), start + 1h + 600s);
  REQUIRE(many);
  CHECK(many->reason.find("; 94 went before; spare 92 was lost; ") != std::string::npos);
  CHECK(many->reason.ends_with("; spare 99 was lost"));
}

TEST_CASE("waiting nodes hear whom they wait for when it changes, and every 10 s",
          "[rendezvous][forming_round]") {
  FormingRound round(elastic, start);
  const auto hears = [&](std::size_t count, TimePoint now) {
    const auto decision = round.look(nodes(count), now);
    REQUIRE(decision);
    REQUIRE(decision->kind == Kind::Wait);
    CHECK(*round.look_again() <= now + FormingRound::repeat);
    return round.has_news(*decision, now);
  };
  CHECK(hears(0, start));
  CHECK_FALSE(hears(0, start + 9'999ms));
  CHECK(hears(0, start + 10s));
  CHECK(hears(1, start + 11s));
  CHECK_FALSE(hears(1, start + 12s));
  CHECK(hears(0, start + 13s));
  round.reopen(start + 14s);
  CHECK(hears(0, start + 14s));
}

TEST_CASE("16.5: hundreds that join at once do not each hear of each other",
          "[rendezvous][forming_round]") {
  FormingRound round({.elastic = true, .nodes_min = 2, .nodes_max = 501}, start);
  int told = 0;
  TimePoint now = start;
  for (std::size_t joined = 1; joined <= 500; ++joined) {
    now += 1ms;
    const auto decision = round.look(nodes(joined), now);
    REQUIRE(decision);
    const bool news = round.has_news(*decision, now);
    if (joined <= 32) CHECK(news);
    if (news) ++told;
  }
  CHECK(told < 50);
  // The last ones are not forgotten.
  REQUIRE(round.look_again());
  CHECK(*round.look_again() <= now + 250ms);
  const auto last = round.look(nodes(500), *round.look_again());
  REQUIRE(last);
  CHECK(round.has_news(*last, now + 250ms));
}
