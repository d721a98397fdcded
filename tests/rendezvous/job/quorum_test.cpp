// Whether those out of a coordinator's sight could have chosen another one.
#include "rendezvous/job/quorum.h"

#include <set>
#include <string>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

namespace {

Council council(const std::string& letters) {
  Council seats;
  for (const char letter : letters) seats.push_back({std::string(1, letter)});
  return seats;
}

// Each letter is a node that the coordinator hears.
bool others_may_choose(const Quorum& quorum, const std::string& present) {
  return quorum.verdict([&](const std::string& id) {
    return present.find(id) != std::string::npos;
  }) == Quorum::Verdict::MustEnd;
}

void started(Quorum& quorum, const std::string& letters) {
  for (const char letter : letters) quorum.started(std::string(1, letter));
}

}  // namespace

TEST_CASE("before the first round, and without a council, nobody else can choose",
          "[rendezvous][quorum]") {
  Quorum quorum;
  CHECK_FALSE(others_may_choose(quorum, ""));
  quorum.round_closed({});
  CHECK_FALSE(others_may_choose(quorum, ""));
}

TEST_CASE("others may choose once more than half of the council is out of sight",
          "[rendezvous][quorum]") {
  Quorum quorum;
  quorum.round_closed(council("abcd"));
  CHECK_FALSE(others_may_choose(quorum, "abcd"));
  CHECK_FALSE(others_may_choose(quorum, "ab"));  // Two of four are no majority.
  CHECK(others_may_choose(quorum, "a"));
  CHECK(others_may_choose(quorum, "axyz"));  // Who sits in no council counts for nothing.
}

TEST_CASE("who said goodbye votes for nobody, and never again", "[rendezvous][quorum]") {
  Quorum quorum;
  quorum.round_closed(council("abc"));
  quorum.resigned("b");
  CHECK_FALSE(others_may_choose(quorum, "a"));
  quorum.round_closed(council("abd"));
  started(quorum, "ad");
  CHECK_FALSE(others_may_choose(quorum, "a"));
}

TEST_CASE("the council before counts until its majority has started the round",
          "[rendezvous][quorum]") {
  Quorum quorum;
  quorum.round_closed(council("abc"));
  CHECK(quorum.before().empty());
  quorum.round_closed(council("ade"));
  CHECK(quorum.before() == council("abc"));
  CHECK(others_may_choose(quorum, "ade"));  // b and c know nothing of the new round.

  SECTION("the new round's majority does not settle it") {
    started(quorum, "ade");
    CHECK_FALSE(quorum.before().empty());
  }
  SECTION("one of the three before says goodbye, another has started") {
    CHECK_FALSE(quorum.started("a"));
    CHECK(quorum.resigned("b"));  // True: told once.
    CHECK(quorum.before().empty());
    CHECK_FALSE(others_may_choose(quorum, "ad"));
    CHECK(others_may_choose(quorum, "a"));
    CHECK_FALSE(quorum.started("d"));
  }
}

TEST_CASE("a round that was never settled leaves no trace", "[rendezvous][quorum]") {
  Quorum quorum;
  quorum.round_closed(council("abc"));
  quorum.round_closed(council("ab"));
  started(quorum, "a");
  quorum.round_closed(council("acd"));
  CHECK(quorum.before() == council("abc"));
  CHECK(quorum.council() == council("acd"));
  // What was started in the round that left no trace counts no more.
  CHECK_FALSE(quorum.started("c"));
  CHECK(quorum.started("a"));
}

TEST_CASE("a successor inherits both councils", "[rendezvous][quorum]") {
  Quorum quorum;
  quorum.inherit(council("acd"), council("abc"));
  CHECK(others_may_choose(quorum, "acd") == false);
  CHECK(others_may_choose(quorum, "ad"));
  started(quorum, "ac");
  CHECK(quorum.before().empty());
  CHECK_FALSE(others_may_choose(quorum, "ad"));
}

TEST_CASE("a successor counts those that said goodbye before it as little as who led before",
          "[rendezvous][quorum]") {
  Quorum first;
  first.round_closed(council("abcde"));
  CHECK(first.resigned("e"));  // True: the others are to hear of it, ...
  CHECK_FALSE(first.resigned("e"));
  CHECK_FALSE(first.resigned("x"));  // ... but not of one without a seat.
  REQUIRE(first.resigned() == std::vector<std::string>{"e"});

  Quorum next;
  next.inherit(first.council(), first.before(), {}, {}, first.resigned());
  CHECK_FALSE(others_may_choose(next, "bc"));  // a and d could be out of sight.
  CHECK(others_may_choose(next, "b"));
  next.round_closed(council("bcd"));
  CHECK(next.resigned() == std::vector<std::string>{"e"});
  CHECK_FALSE(next.started("b"));
  CHECK(next.started("c"));  // With e three of five know of it.
  CHECK(next.resigned().empty());
}

TEST_CASE("16.1: where the arbiter decides between halves, half out of sight need its word",
          "[rendezvous][quorum][arbiter]") {
  using Verdict = Quorum::Verdict;
  Quorum quorum(Arbitration::Halves);
  const RoundName first{0, 0}, second{0, 1};
  quorum.round_closed(council("abcd"), first);
  const auto verdict = [&](const std::string& present) {
    return quorum.verdict(
        [&](const std::string& id) { return present.find(id) != std::string::npos; });
  };
  CHECK(verdict("abc") == Verdict::Leads);
  CHECK(verdict("ab") == Verdict::NeedsWord);
  CHECK(verdict("a") == Verdict::MustEnd);
  CHECK(quorum.choosers() == first);
  quorum.word_given({first});
  CHECK(verdict("ab") == Verdict::Leads);
  CHECK(verdict("a") == Verdict::MustEnd);  // Three of them need no word.
  CHECK(quorum.unkept().count(first) == 1);
  CHECK_FALSE(quorum.word_kept());
  CHECK(quorum.unkept().empty());

  // Half of those that could choose without this round are enough now: the others have no word.
  quorum.round_closed(council("ab"), second);
  CHECK_FALSE(quorum.started("a"));
  CHECK(quorum.started("b"));
  CHECK(quorum.choosers() == second);
  CHECK(verdict("a") == Verdict::NeedsWord);
}

TEST_CASE("16.1: of three nodes two decide, arbiter or not", "[rendezvous][quorum][arbiter]") {
  Quorum quorum(Arbitration::Halves);
  quorum.round_closed(council("abc"));
  CHECK_FALSE(others_may_choose(quorum, "ab"));
  CHECK(others_may_choose(quorum, "a"));
}

TEST_CASE("16.1: where the arbiter alone decides, one out of sight is enough to need it",
          "[rendezvous][quorum][arbiter]") {
  using Verdict = Quorum::Verdict;
  Quorum quorum(Arbitration::Anyone);
  quorum.round_closed(council("abc"), {0, 0});
  const auto verdict = [&](const std::string& present) {
    return quorum.verdict(
        [&](const std::string& id) { return present.find(id) != std::string::npos; });
  };
  CHECK(verdict("abc") == Verdict::Leads);
  CHECK(verdict("ab") == Verdict::NeedsWord);
  CHECK(verdict("a") == Verdict::NeedsWord);
  quorum.word_given({{0, 0}});
  CHECK(verdict("a") == Verdict::Leads);
  // Without the word kept, all must have started a round before the one before counts no more.
  quorum.round_closed(council("ab"), {0, 1});
  started(quorum, "ab");
  CHECK(quorum.choosers() == RoundName{0, 0});
  CHECK(quorum.word_kept());
  CHECK(quorum.choosers() == RoundName{0, 1});
}

TEST_CASE("two sets that may choose always share a node or need the one word",
          "[rendezvous][quorum][arbiter]") {
  for (const auto arbitration : {Arbitration::None, Arbitration::Halves, Arbitration::Anyone}) {
    for (std::size_t nodes = 1; nodes <= council_max; ++nodes) {
      const Council seats(nodes);
      const std::size_t alone = enough_alone(seats, arbitration);
      const std::size_t with_word = enough_with_word(seats, arbitration);
      CAPTURE(static_cast<int>(arbitration), nodes);
      CHECK(alone + alone > nodes);
      CHECK(alone + with_word > nodes);
      CHECK(with_word <= alone);
    }
  }
}
