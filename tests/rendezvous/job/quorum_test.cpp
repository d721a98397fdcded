// Whether those out of a coordinator's sight could have chosen another one.
#include "rendezvous/job/quorum.h"

#include <set>
#include <string>

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
  return quorum.others_may_choose(
      [&](const std::string& id) { return present.find(id) != std::string::npos; });
}

void start(Quorum& quorum, const std::string& letters) {
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
  start(quorum, "ad");
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
    start(quorum, "ade");
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
  start(quorum, "a");
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
  start(quorum, "ac");
  CHECK(quorum.before().empty());
  CHECK_FALSE(others_may_choose(quorum, "ad"));
}
