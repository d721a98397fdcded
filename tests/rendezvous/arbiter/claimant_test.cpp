// Two agents and the arbiter's list of one round, time as a number.
#include "rendezvous/arbiter/claimant.h"

#include <map>
#include <string>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const TimePoint start = TimePoint() + 1h;
const ClaimLimits claim_limits{.look_again = 1s, .lapse = 10s};
const RoundName third{0, 3};

// The list of each round, as an arbiter keeps it.
struct Lists {
  std::map<RoundName, std::vector<Claim>> claims;
  std::map<std::string, std::uint64_t> beats;

  ArbiterReply carry_out(const std::string& node_id, const ArbiterTask& task) {
    std::vector<Claim>& list = claims[task.round];
    if (task.add && list.size() == static_cast<std::size_t>(task.at)) list.push_back(*task.add);
    if (task.beat) beats[node_id] = *task.beat;
    Claims seen{.count = static_cast<int>(list.size())};
    if (list.empty()) return {.claims = seen, .why = {}};
    seen.last = list.back();
    if (beats.count(seen.last.holder.node_id)) seen.beat = beats[seen.last.holder.node_id];
    return {.claims = seen, .why = {}};
  }
};

struct Agent {
  std::string id;
  Claimant core{claim_limits};

  void want(int term, TimePoint now, bool keep = false, bool leads = false) {
    core.want({.rounds = {third}, .term = term, .leads = leads, .keep = keep},
              {.node_id = id, .host = "host-" + id, .address = "10.0.0.1", .port = 1}, now);
  }
  // All that is due at `now`, and the last news of it.
  std::optional<Word> run(Lists& lists, TimePoint now) {
    std::optional<Word> news;
    while (const auto task = core.next(now)) {
      if (auto word = core.answered(lists.carry_out(id, *task), now)) news = word;
    }
    return news;
  }
  // Looks whenever it wants to, from `from` to `to`.
  std::optional<Word> live(Lists& lists, TimePoint from, TimePoint to) {
    std::optional<Word> news;
    for (TimePoint now = from; now <= to; now += 100ms) {
      if (auto word = run(lists, now)) news = word;
    }
    return news;
  }
};

}  // namespace

TEST_CASE("16.1: who comes first is given the word, and keeps it when it asks for that",
          "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, b{"b"};
  a.want(0, start);
  auto word = a.run(lists, start);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Given);
  CHECK(word->rounds == std::vector{third});
  CHECK_FALSE(a.run(lists, start + 1s));  // It is no news any more.
  b.want(1, start);
  CHECK_FALSE(b.run(lists, start));  // It waits and sees.

  a.want(0, start + 1s, /*keep=*/true);
  word = a.run(lists, start + 1s);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Kept);
  CHECK_FALSE(a.core.next_tick());  // It asks nothing more.
  word = b.run(lists, start + 1s);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Refused);
  CHECK(word->holder.host == "host-a");
  CHECK_FALSE(b.core.next_tick());
}

TEST_CASE("16.1: who wishes again is told again, and goes on where it was",
          "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, b{"b"};
  b.want(1, start);  // Looks, and waits: its beat has not begun.
  a.want(0, start);
  REQUIRE(a.run(lists, start));
  CHECK_FALSE(b.run(lists, start));
  b.want(1, start);
  CHECK_FALSE(b.run(lists, start));  // Still not its own.
  SECTION("its beat goes on: the claim does not lapse") {
    for (TimePoint now = start; now < start + 60s; now += 500ms) {
      a.want(0, now);
      const auto word = a.run(lists, now);
      REQUIRE(word);
      CHECK(word->kind == Word::Kind::Given);
      CHECK_FALSE(b.run(lists, now));
    }
  }
  SECTION("in another term: that is claimed, too") {
    a.want(5, start);
    const auto word = a.run(lists, start);
    REQUIRE(word);
    CHECK(word->term == 5);
    CHECK(lists.claims[third].back().term == 5);
    CHECK_FALSE(lists.claims[third].back().kept);
  }
  SECTION("what another one has taken meanwhile is refused at once, in that term") {
    REQUIRE(b.live(lists, start, start + 12s));
    a.want(0, start + 12s);
    const auto word = a.run(lists, start + 12s);
    REQUIRE(word);
    CHECK(word->kind == Word::Kind::Refused);
  }
  SECTION("in a later term it waits for that one's claim to lapse") {
    REQUIRE(b.live(lists, start, start + 12s));
    a.want(2, start + 12s);
    CHECK_FALSE(a.run(lists, start + 12s));
  }
  SECTION("for another round: what was under way claims nothing") {
    lists.claims.clear();
    a.want(0, start);
    const auto task = a.core.next(start);
    REQUIRE(task);
    a.core.want({.rounds = {{0, 4}}, .term = 0, .leads = false, .keep = false}, {.node_id = "a"},
                start);
    CHECK_FALSE(a.core.answered(lists.carry_out("a", *task), start));
    CHECK(a.live(lists, start, start + 2s));
    CHECK(lists.claims[third].empty());
  }
}

TEST_CASE("16.1: a claim on top of one that lapsed has its own time to lapse",
          "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, c{"c"};
  a.want(0, start);
  a.run(lists, start);
  c.want(2, start);
  CHECK_FALSE(c.run(lists, start));
  lists.claims[third].push_back({.holder = {.node_id = "b"}, .term = 1, .kept = false});
  lists.beats["b"] = lists.beats["a"];
  CHECK_FALSE(c.live(lists, start + 9s, start + 18s));
  CHECK(c.live(lists, start + 18s, start + 20s));
}

TEST_CASE("16.1: a claim whose beat grows never lapses, one whose beat stands still does",
          "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, b{"b"};
  a.want(0, start);
  a.run(lists, start);
  b.want(1, start);
  for (TimePoint now = start; now < start + 60s; now += 500ms) {
    a.run(lists, now);
    CHECK_FALSE(b.run(lists, now));
  }
  const TimePoint dead = start + 60s;  // Since then nothing is heard of a.
  CHECK_FALSE(b.live(lists, dead, dead + 8s));
  const auto word = b.live(lists, dead + 8s, dead + 12s);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Given);

  // It was only asleep: what it wakes up to is not its any more.
  const auto late = a.live(lists, dead + 13s, dead + 14s);
  REQUIRE(late);
  CHECK(late->kind == Word::Kind::Refused);
  CHECK(late->holder.node_id == "b");
}

TEST_CASE("16.1: whoever keeps the word a moment after another has taken it is refused",
          "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, b{"b"};
  a.want(0, start);
  a.run(lists, start);
  a.want(0, start + 1s, /*keep=*/true);
  // It has read its own claim, and is frozen before it adds what keeps it.
  auto task = a.core.next(start + 1s);
  REQUIRE(task);
  a.core.answered(lists.carry_out("a", *task), start + 1s);
  task = a.core.next(start + 1s);
  REQUIRE(task);
  REQUIRE(task->add);
  CHECK(task->add->kept);
  b.want(1, start + 1s);
  REQUIRE(b.live(lists, start + 1s, start + 13s));
  const auto word = a.core.answered(lists.carry_out("a", *task), start + 60s);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Refused);
}

TEST_CASE("16.1: a kept claim never lapses", "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, b{"b"};
  a.want(0, start, /*keep=*/true);
  const auto kept = a.run(lists, start);
  REQUIRE(kept);
  CHECK(kept->kind == Word::Kind::Kept);
  b.want(1, start + 1h);
  const auto word = b.run(lists, start + 1h);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Refused);

  a.want(5, start + 1h);  // Its own stays its own.
  const auto again = a.run(lists, start + 1h);
  REQUIRE(again);
  CHECK(again->kind == Word::Kind::Given);
  CHECK(lists.claims[third].size() == 2);
}

TEST_CASE("16.1: who follows a claim that lapsed has a higher term", "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, b{"b"}, old{"o"};
  a.want(4, start);
  a.run(lists, start);
  SECTION("a candidate is told, and stands again") {
    b.want(GENERATE(3, 4), start);
    const auto word = b.live(lists, start, start + 12s);
    REQUIRE(word);
    CHECK(word->kind == Word::Kind::Outdated);
    CHECK(word->term == 4);
    CHECK_FALSE(b.core.next_tick());
  }
  SECTION("the coordinator that was takes one that no election reaches") {
    old.want(3, start, /*keep=*/false, /*leads=*/true);
    const auto word = old.live(lists, start, start + 12s);
    REQUIRE(word);
    CHECK(word->kind == Word::Kind::Given);
    CHECK(word->term == 1'004);
    CHECK(lists.claims[third].back().term == 1'004);
    CHECK_FALSE(lists.claims[third].back().kept);
  }
  SECTION("in all of its rounds, before it has the word") {
    old.core.want({.rounds = {{0, 2}, third}, .term = 3, .leads = true, .keep = false},
                  {.node_id = "o"}, start);
    std::optional<Word> word;
    for (TimePoint now = start; !word && now < start + 12s; now += 100ms)
      word = old.run(lists, now);
    REQUIRE(word);
    CHECK(lists.claims[RoundName{0, 2}].back().term == 1'004);
  }
}

TEST_CASE("16.1: of two rounds both are needed", "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"}, b{"b"};
  a.want(1, start);
  a.run(lists, start);
  b.core.want({.rounds = {{0, 2}, third}, .term = 2, .leads = false, .keep = false},
              {.node_id = "b"}, start);
  CHECK_FALSE(b.run(lists, start));
  CHECK(lists.claims[RoundName{0, 2}].size() == 1);  // The other is a's.
  const auto word = b.live(lists, start, start + 12s);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Given);
  CHECK(word->rounds.size() == 2);

  Agent c{"c"};  // To keep the first one once is enough, too.
  lists.claims[RoundName{0, 2}].clear();
  c.core.want({.rounds = {{0, 2}, third}, .term = 3, .leads = false, .keep = true},
              {.node_id = "c"}, start + 12s);
  CHECK_FALSE(c.run(lists, start + 12s));
  CHECK(lists.claims[RoundName{0, 2}].size() == 2);
}

TEST_CASE("16.1: an arbiter that cannot be asked is news once, and asked again",
          "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"};
  a.want(0, start);
  REQUIRE(a.core.next(start));
  CHECK_FALSE(a.core.next(start));  // One at a time.
  CHECK_FALSE(a.core.next_tick());
  const auto word = a.core.answered({.claims = {}, .why = "no such folder"}, start);
  REQUIRE(word);
  CHECK(word->kind == Word::Kind::Unreached);
  CHECK(word->why == "no such folder");
  CHECK(a.core.next_tick() == start + 1s);
  REQUIRE(a.core.next(start + 1s));
  CHECK_FALSE(a.core.answered({.claims = {}, .why = "no such folder"}, start + 1s));
  const auto given = a.run(lists, start + 2s);
  REQUIRE(given);
  CHECK(given->kind == Word::Kind::Given);
}

TEST_CASE("16.1: an answer to an earlier wish is none to this one", "[rendezvous][arbiter]") {
  Lists lists;
  Agent a{"a"};
  a.want(0, start);
  const auto task = a.core.next(start);
  REQUIRE(task);
  a.want(5, start);
  CHECK_FALSE(a.core.answered(lists.carry_out("a", *task), start));
  const auto word = a.run(lists, start);
  REQUIRE(word);
  CHECK(word->term == 5);

  a.want(5, start);
  const auto of_dropped = a.core.next(start);
  REQUIRE(of_dropped);
  a.core.drop();
  CHECK_FALSE(a.core.answered(lists.carry_out("a", *of_dropped), start));
  CHECK_FALSE(a.core.next(start + 1h));
}
