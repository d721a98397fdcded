// The election as one agent sees it: asks and votes in, time as a number.
#include "rendezvous/takeover/takeover.h"

#include <string>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const TimePoint start = TimePoint() + 1h;

Council council(const std::string& letters) {
  Council seats;
  for (const char letter : letters) {
    const int rank = static_cast<int>(seats.size());
    seats.push_back({.node_id = std::string(1, letter),
                     .group_rank = rank,
                     .host = std::string("host-") + letter,
                     .address = "10.0.0." + std::to_string(rank),
                     .port = 7'000});
  }
  return seats;
}

Succession round_of(const std::string& letters, int term = 0, int attempt = 0) {
  return {.term = term,
          .round = {term, attempt},
          .nodes = static_cast<int>(letters.size()),
          .coordinator = letters.substr(0, 1),
          .council = council(letters),
          .before = {}};
}

// Follows the first of `letters` and has lost it at `start`.
Takeover seeking(const std::string& self, const Succession& round) {
  Takeover agent("job", self, {});
  agent.heard(round);
  agent.coordinator_lost(start);
  return agent;
}

AskVote ask_by(const std::string& candidate, const std::string& to, int term, int attempt = 0) {
  return {.run_id = "job", .to = to, .candidate = candidate, .term = term, .attempt = attempt};
}

template <class T>
std::vector<T> only(const TakeoverActions& actions) {
  std::vector<T> found;
  for (const TakeoverAction& action : actions) {
    if (const auto* one = std::get_if<T>(&action)) found.push_back(*one);
  }
  return found;
}

std::string asked(const TakeoverActions& actions) {
  std::string letters;
  for (const AskSeat& ask : only<AskSeat>(actions)) letters += ask.seat.node_id;
  return letters;
}

const Vote yes{.term = 1, .granted = true, .coordinator = {}};

}  // namespace

TEST_CASE("the lowest rank that is left stands at once, and leads with a majority",
          "[rendezvous][takeover]") {
  Takeover agent("job", "b", {});
  agent.heard(round_of("abcde"));
  const TakeoverActions actions = agent.coordinator_lost(start);
  CHECK(asked(actions) == "cde");  // Not the one that was lost.
  const AskVote ask = only<AskSeat>(actions).at(0).ask;
  CHECK(ask.candidate == "b");
  CHECK(ask.to == "c");
  CHECK(ask.term == 1);
  CHECK(ask.attempt == 0);

  CHECK(agent.on_vote("c", yes, start).empty());
  CHECK(agent.on_vote("c", yes, start).empty());  // One voter, however often it is heard.
  const Vote no{.term = 1, .granted = false, .coordinator = {}};
  CHECK(agent.on_vote("d", no, start).empty());
  const auto lead = only<Lead>(agent.on_vote("e", yes, start));
  REQUIRE(lead.size() == 1);
  CHECK(lead[0].term == 1);
  CHECK(agent.state() == Takeover::State::Leading);
  CHECK(agent.on_ask(ask_by("c", "b", 2), start).coordinator.node_id == "b");
}

TEST_CASE("further ranks only ask who leads until their turn has come", "[rendezvous][takeover]") {
  Takeover agent("job", "d", {});
  agent.heard(round_of("abcd"));
  const TakeoverActions actions = agent.coordinator_lost(start);
  REQUIRE(only<AskSeat>(actions).size() == 1);
  CHECK(only<AskSeat>(actions)[0].ask.candidate.empty());
  CHECK(agent.term() == 0);
  // It has asked for no vote.
  Takeover last = seeking("e", round_of("abcde"));
  for (const char* voter : {"b", "c", "d"}) {
    CHECK(only<Lead>(last.on_vote(voter, {0, true, {}}, start)).empty());
  }

  agent.on_tick(start + 199ms);
  CHECK(agent.term() == 0);
  CHECK(asked(agent.on_tick(start + 200ms)) == "bc");
  CHECK(agent.term() == 1);
}

TEST_CASE("who has voted asks its candidate every other time, and the others in turn",
          "[rendezvous][takeover]") {
  Takeover agent = seeking("e", round_of("abcde"));
  REQUIRE(agent.on_ask(ask_by("d", "e", 1), start).granted);
  std::string letters;
  while (letters.size() < 5) letters += asked(agent.on_tick(*agent.next_tick()));
  CHECK(letters == "bdcdd");
}

TEST_CASE("who did not answer is asked again, who voted is not", "[rendezvous][takeover]") {
  Takeover agent = seeking("b", round_of("abcde"));
  agent.on_vote("d", yes, start);
  REQUIRE(agent.next_tick() == start + 50ms);
  CHECK(asked(agent.on_tick(start + 50ms)) == "ce");
  CHECK(agent.next_tick() == start + 150ms);
}

TEST_CASE("a vote is for one candidate a term", "[rendezvous][takeover]") {
  Takeover voter = seeking("d", round_of("abcde"));
  CHECK(voter.on_ask(ask_by("b", "d", 1), start).granted);
  CHECK(voter.on_ask(ask_by("b", "d", 1), start).granted);  // Its answer may have been lost.
  CHECK_FALSE(voter.on_ask(ask_by("c", "d", 1), start).granted);
  CHECK(voter.on_ask(ask_by("c", "d", 2), start).granted);
  voter.heard(round_of("abcde", /*term=*/2));  // In that one, whose coordinator it loses, too.
  voter.coordinator_lost(start);
  AskVote same_term = ask_by("b", "d", 2);
  same_term.heard_term = 2;
  CHECK_FALSE(voter.on_ask(same_term, start).granted);
  const Vote late = voter.on_ask(ask_by("b", "d", 1), start);
  CHECK_FALSE(late.granted);
  CHECK(late.term == 2);

  Takeover candidate = seeking("b", round_of("abcde"));
  CHECK_FALSE(candidate.on_ask(ask_by("c", "b", 1), start).granted);  // It votes for itself.
}

TEST_CASE("a vote gives the candidate time before the voter stands itself",
          "[rendezvous][takeover]") {
  Takeover voter = seeking("c", round_of("abc"));
  voter.on_ask(ask_by("b", "c", 1), start + 99ms);
  voter.on_tick(start + 100ms);
  CHECK(voter.term() == 1);
  // Its own place is 1: ten staggers and three more.
  voter.on_tick(start + 99ms + 1'299ms);
  CHECK(voter.term() == 1);
  voter.on_tick(start + 99ms + 1'300ms);
  CHECK(voter.term() == 2);
}

TEST_CASE("nobody votes for one that knows an older round", "[rendezvous][takeover]") {
  Takeover voter = seeking("c", round_of("abc", /*term=*/1, /*attempt=*/4));
  AskVote ask = ask_by("b", "c", 2, /*attempt=*/3);
  ask.heard_term = 1;
  CHECK_FALSE(voter.on_ask(ask, start).granted);
  ask.attempt = 5;
  ask.heard_term = 0;  // A term outweighs any attempt.
  CHECK_FALSE(voter.on_ask(ask, start).granted);
  ask.heard_term = 1;
  CHECK(voter.on_ask(ask, start).granted);
}

TEST_CASE("who hears its coordinator votes for nobody, and says whom it hears",
          "[rendezvous][takeover]") {
  Takeover voter("job", "c", {});
  voter.heard(round_of("abc"));
  const Vote vote = voter.on_ask(ask_by("b", "c", 7), start);
  CHECK_FALSE(vote.granted);
  CHECK(vote.coordinator.node_id == "a");
  CHECK(vote.term == 0);  // A term that nobody elected in costs the others nothing.

  Takeover first("job", "a", {});
  first.leads();
  first.heard(round_of("abc"));
  CHECK_FALSE(first.on_ask(ask_by("b", "a", 7), start).granted);
  CHECK(first.coordinator_lost(start).empty());
}

TEST_CASE("asks for another job, or for who this agent was before, are not answered with a vote",
          "[rendezvous][takeover]") {
  Takeover voter = seeking("c", round_of("abc"));
  AskVote ask = ask_by("b", "old", 1);
  CHECK_FALSE(voter.on_ask(ask, start).granted);
  ask = ask_by("b", "c", 1);
  ask.run_id = "another";
  CHECK_FALSE(voter.on_ask(ask, start).granted);
  ask = ask_by("", "c", 1);  // Who only asks who leads.
  CHECK_FALSE(voter.on_ask(ask, start).granted);
  CHECK(voter.term() == 0);
}

TEST_CASE("a vote that comes after its term counts for nothing", "[rendezvous][takeover]") {
  Takeover agent = seeking("b", round_of("abc"));
  agent.on_vote("c", {.term = 3, .granted = false, .coordinator = {}}, start);
  CHECK(agent.term() == 3);
  CHECK(only<Lead>(agent.on_vote("c", yes, start)).empty());
  agent.on_tick(start + 1s);  // Stands again, above what it has heard of.
  CHECK(agent.term() == 4);
  CHECK(only<Lead>(agent.on_vote("c", yes, start + 1s)).empty());
  CHECK(only<Lead>(agent.on_vote("c", {4, true, {}}, start + 1s)).size() == 1);
}

TEST_CASE("a round that is not settled needs both majorities", "[rendezvous][takeover]") {
  Succession round = round_of("abde", 0, 1);
  round.before = council("abc");
  Takeover agent("job", "b", {});
  agent.heard(round);
  CHECK(asked(agent.coordinator_lost(start)) == "dec");
  CHECK(only<Lead>(agent.on_vote("d", yes, start)).empty());
  CHECK(only<Lead>(agent.on_vote("e", yes, start)).empty());  // 3 of 4, but 1 of 3.
  CHECK(only<Lead>(agent.on_vote("c", yes, start)).size() == 1);

  round.before = council("ac");
  Takeover too_few("job", "b", {});
  too_few.heard(round);
  CHECK(only<GiveUp>(too_few.coordinator_lost(start)).size() == 1);
}

TEST_CASE("another agent leads: it is followed, unless its term is over",
          "[rendezvous][takeover]") {
  Takeover agent = seeking("d", round_of("abcd", /*term=*/2, /*attempt=*/3));
  const Seat b = council("abcd")[1];
  CHECK(agent.on_vote("c", {.term = 1, .granted = false, .coordinator = b}, start).empty());
  const auto follow =
      only<Follow>(agent.on_vote("c", {.term = 3, .granted = false, .coordinator = b}, start));
  REQUIRE(follow.size() == 1);
  CHECK(follow[0].coordinator == b);
  CHECK(agent.state() == Takeover::State::Following);
  CHECK_FALSE(agent.next_tick());

  // That one is gone as well: the next one stands.
  agent.coordinator_lost(start + 1s);
  CHECK(agent.state() == Takeover::State::Seeking);
  CHECK(agent.on_vote("c", {.term = 3, .granted = false, .coordinator = b}, start + 1s).empty());
}

TEST_CASE("who alone has lost the coordinator gives up once all would have noticed",
          "[rendezvous][takeover]") {
  Takeover agent = seeking("c", round_of("abc"));
  // What says that this agent itself leads is of another time.
  const Vote of_itself{.term = 0, .granted = false, .coordinator = council("abc")[2]};
  CHECK(agent.on_vote("b", of_itself, start + 7s).empty());
  const Vote hears{.term = 0, .granted = false, .coordinator = council("abc")[0]};
  CHECK(agent.on_vote("b", hears, start + 5'999ms).empty());
  const auto end = only<GiveUp>(agent.on_vote("b", hears, start + 6s));
  REQUIRE(end.size() == 1);
  CHECK(end[0].still_there);
  CHECK(agent.state() == Takeover::State::Over);
  CHECK(agent.coordinator_lost(start + 6s).empty());
  CHECK_FALSE(agent.on_ask(ask_by("b", "c", 9), start + 6s).granted);
}

TEST_CASE("without a majority it gives up, and says what would have helped",
          "[rendezvous][takeover]") {
  Takeover agent = seeking("b", round_of("abc"));
  CHECK(only<GiveUp>(agent.on_tick(start + 19'999ms)).empty());
  const auto end = only<GiveUp>(agent.on_tick(start + 20s));
  REQUIRE(end.size() == 1);
  CHECK_FALSE(end[0].still_there);
  CHECK(end[0].why.find("no majority of the 3 nodes") != std::string::npos);
  CHECK(only<GiveUp>(agent.on_tick(start + 21s)).empty());
}

TEST_CASE("who has resigned is not asked for its vote, and as many are enough as before",
          "[rendezvous][takeover]") {
  Succession round = round_of("abcde");
  round.resigned = {"d"};
  Takeover agent("job", "b", {});
  agent.heard(round);
  CHECK(asked(agent.coordinator_lost(start)) == "ce");
  CHECK(only<Lead>(agent.on_vote("c", yes, start)).empty());
  CHECK(only<Lead>(agent.on_vote("e", yes, start)).size() == 1);
}

TEST_CASE("one of two nodes has no majority, and gives up at once", "[rendezvous][takeover]") {
  Takeover agent("job", "b", {});
  agent.heard(round_of("ab"));
  const auto end = only<GiveUp>(agent.coordinator_lost(start));
  REQUIRE(end.size() == 1);
  CHECK(end[0].why.find("of three nodes two could") != std::string::npos);
}

TEST_CASE("16.1: a coordinator that leaves votes, so that one of two may take over",
          "[rendezvous][takeover]") {
  Takeover next("job", "b", {}), leaving("job", "a", {});
  next.heard(round_of("ab"));
  leaving.heard(round_of("ab"));
  leaving.coordinator_hands_over(start);
  for (TimePoint now = start; now < start + 10s; now += 50ms) {
    for (const AskSeat& ask : only<AskSeat>(leaving.on_tick(now))) {
      CHECK(ask.ask.candidate.empty());  // It never stands.
    }
  }
  const TakeoverActions actions = next.coordinator_hands_over(start);
  REQUIRE(asked(actions) == "a");
  const Vote vote = leaving.on_ask(only<AskSeat>(actions)[0].ask, start);
  CHECK(vote.granted);
  CHECK(only<Lead>(next.on_vote("a", vote, start)).size() == 1);
}

TEST_CASE("before the first round nobody could take over", "[rendezvous][takeover]") {
  Takeover agent("job", "b", {});
  CHECK(only<GiveUp>(agent.coordinator_lost(start)).size() == 1);
  Takeover voteless("job", "b", {});  // Nobody in that one has a vote.
  voteless.heard(round_of(""));
  CHECK(only<GiveUp>(voteless.coordinator_lost(start)).size() == 1);
}

TEST_CASE("a spare sits in no council and never stands, but follows", "[rendezvous][takeover]") {
  Takeover spare = seeking("x", round_of("abcd"));
  for (TimePoint now = start; now < start + 10s; now += 50ms) {
    for (const AskSeat& ask : only<AskSeat>(spare.on_tick(now))) CHECK(ask.ask.candidate.empty());
  }
  const Seat c = council("abcd")[2];
  const auto follow = only<Follow>(
      spare.on_vote("c", {.term = 1, .granted = false, .coordinator = c}, start + 10s));
  CHECK(follow.size() == 1);
}

namespace {

Takeover with_arbiter(const std::string& self, const std::string& letters,
                      Arbitration arbitration = Arbitration::Halves) {
  Takeover agent("job", self, {.arbitration = arbitration, .ask_arbiter_after = 500ms});
  Succession round = round_of(letters);
  round.job = "name";
  agent.heard(round);
  return agent;
}

}  // namespace

TEST_CASE("16.1: one of two nodes asks the arbiter, after the coordinator could have",
          "[rendezvous][takeover][arbiter]") {
  Takeover agent = with_arbiter("b", "ab");
  CHECK(only<AskArbiter>(agent.coordinator_lost(start)).empty());
  CHECK(only<AskArbiter>(agent.on_tick(start + 499ms)).empty());
  std::vector<AskArbiter> asked;
  while (asked.empty()) {
    REQUIRE(agent.next_tick());
    REQUIRE(*agent.next_tick() < start + 3s);
    asked = only<AskArbiter>(agent.on_tick(*agent.next_tick()));
  }
  CHECK(asked[0].wish.rounds == std::vector{RoundName{0, 0}});
  CHECK_FALSE(asked[0].wish.keep);

  SECTION("given: it leads") {
    const auto lead = only<Lead>(agent.on_word({.kind = Word::Kind::Given,
                                                .rounds = {{0, 0}},
                                                .term = agent.term(),
                                                .holder = {},
                                                .why = {}},
                                               start + 2s));
    REQUIRE(lead.size() == 1);
    CHECK(lead[0].given == std::vector{RoundName{0, 0}});
    CHECK(agent.state() == Takeover::State::Leading);
  }
  SECTION("refused: it says who has it, and may join that one") {
    const Seat a = council("ab")[0];
    const auto end = only<GiveUp>(agent.on_word(
        {.kind = Word::Kind::Refused, .rounds = {}, .term = 0, .holder = a, .why = {}},
        start + 2s));
    REQUIRE(end.size() == 1);
    CHECK(end[0].why == "host-a at 10.0.0.0 has claimed the job");
    CHECK(end[0].still_there);
    CHECK(end[0].coordinator == a);
  }
  SECTION("outdated: it stands above that term, and asks again") {
    agent.on_word({.kind = Word::Kind::Outdated, .rounds = {}, .term = 7, .holder = {}, .why = {}},
                  start + 2s);
    CHECK(agent.term() == 8);
    const auto again = only<AskArbiter>(agent.on_tick(start + 2'100ms));
    REQUIRE(again.size() == 1);
    CHECK(again[0].wish.term == 8);
  }
  SECTION("away: it gives up in the end, and says why") {
    agent.on_word({.kind = Word::Kind::Unreached,
                   .rounds = {},
                   .term = 0,
                   .holder = {},
                   .why = "the disk is full"},
                  start + 2s);
    CHECK(only<GiveUp>(agent.on_tick(start + 49s)).empty());
    const auto end = only<GiveUp>(agent.on_tick(start + 50s));
    REQUIRE(end.size() == 1);
    CHECK(end[0].why == "the disk is full");
  }
}

TEST_CASE("16.1: a majority needs no arbiter, and half of four need it",
          "[rendezvous][takeover][arbiter]") {
  Takeover agent = with_arbiter("b", "abcd");
  agent.coordinator_lost(start);
  SECTION("three of four") {
    CHECK(only<Lead>(agent.on_vote("c", yes, start)).empty());
    const auto lead = only<Lead>(agent.on_vote("d", yes, start));
    REQUIRE(lead.size() == 1);
    CHECK(lead[0].given.empty());
  }
  SECTION("two of four, and while they wait for the word they vote for nobody else") {
    agent.on_vote("c", yes, start);
    CHECK(only<AskArbiter>(agent.on_tick(start + 500ms)).size() == 1);
    CHECK_FALSE(agent.on_ask(ask_by("c", "b", 2), start + 1s).granted);
    CHECK(agent.term() == 1);
    for (TimePoint now = start + 500ms; now < start + 2s; now = *agent.next_tick()) {
      CHECK(only<AskArbiter>(agent.on_tick(now)).empty());  // It is asked already.
      CHECK(*agent.next_tick() > now);
    }
    CHECK(only<AskArbiter>(agent.on_vote("c", yes, start + 2s)).empty());
    CHECK(agent.term() == 1);
    // The third one is only slow.
    const auto actions = agent.on_vote("d", yes, start + 2s);
    CHECK(only<StopAsking>(actions).size() == 1);
    CHECK(only<Lead>(actions).size() == 1);
  }
  SECTION("and need it no more once another one leads, or the time is over") {
    agent.on_vote("c", yes, start);
    REQUIRE(only<AskArbiter>(agent.on_tick(start + 500ms)).size() == 1);
    const Vote led{.term = 3, .granted = false, .coordinator = council("abcd")[3]};
    const auto actions =
        GENERATE(true, false) ? agent.on_vote("c", led, start + 1s) : agent.on_tick(start + 50s);
    CHECK(only<StopAsking>(actions).size() == 1);
    CHECK(only<Follow>(actions).size() + only<GiveUp>(actions).size() == 1);
  }
  SECTION("one of four is too few") { CHECK(only<AskArbiter>(agent.on_tick(start + 1s)).empty()); }
}

TEST_CASE("16.1: where the arbiter alone decides, one of five asks it",
          "[rendezvous][takeover][arbiter]") {
  Takeover agent = with_arbiter("b", "abcde", Arbitration::Anyone);
  agent.coordinator_lost(start);
  agent.on_vote("c", yes, start);
  agent.on_vote("d", yes, start);
  CHECK(only<Lead>(agent.on_vote("e", yes, start)).empty());  // Four of five, and not all.
  CHECK(only<AskArbiter>(agent.on_tick(start + 500ms)).size() == 1);
}

TEST_CASE("16.1: without a name of the job no arbiter is asked",
          "[rendezvous][takeover][arbiter]") {
  Takeover agent("job", "b", {.arbitration = Arbitration::Halves});
  agent.heard(round_of("ab"));  // Its coordinator has none.
  CHECK(only<GiveUp>(agent.coordinator_lost(start)).size() == 1);
}
