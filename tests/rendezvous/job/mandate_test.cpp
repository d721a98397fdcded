// When a coordinator still decides, as rulings: who is out of sight, and what the arbiter has said.
#include "rendezvous/job/mandate.h"

#include <set>
#include <string>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

using RulingKind = Mandate::Ruling::Kind;

Council council_of_nodes(int nodes) {
  Council council;
  for (int node = 1; node <= nodes; ++node) {
    council.push_back({"node" + std::to_string(node), node - 1, "host", "10.0.0.1", 40'000});
  }
  return council;
}

// Node 1 coordinates, and its first round is settled.
Mandate of_nodes(int nodes, Arbitration arbitration = Arbitration::None, bool shared = true) {
  Mandate mandate({.coordinator = "node1",
                   .may_be_taken_over = shared,
                   .arbitration = arbitration,
                   .job = "job",
                   .word_limit = 20s});
  mandate.round_closed(council_of_nodes(nodes), nodes);
  return mandate;
}

Mandate::Present only(std::set<std::string> here) {
  return [here = std::move(here)](const std::string& id) { return here.count(id) > 0; };
}

Word given(const Mandate::Ruling& ruling, Word::Kind kind = Word::Kind::Given) {
  REQUIRE(ruling.ask);
  return {.kind = kind,
          .rounds = ruling.ask->rounds,
          .term = ruling.ask->term,
          .holder = {.node_id = "node2", .host = "host2", .address = "10.0.0.2"},
          .why = "the server is away"};
}

const TimePoint begin = TimePoint() + 1h;

}  // namespace

TEST_CASE("nobody else can decide for a job that cannot be taken over", "[rendezvous][job]") {
  Mandate mandate = of_nodes(3, Arbitration::None, /*shared=*/false);

  CHECK(mandate.after_loss(only({"node1"}), begin).kind == RulingKind::Leads);
  CHECK(mandate.before_round(only({"node1"}), begin).kind == RulingKind::Leads);
  CHECK_FALSE(mandate.can_be_handed_over(only({"node2", "node3"})));
}

TEST_CASE("who sees most of the round leads, and who does not gives way", "[rendezvous][job]") {
  Mandate mandate = of_nodes(3);

  CHECK(mandate.after_loss(only({"node1", "node3"}), begin).kind == RulingKind::Leads);
  CHECK(mandate.before_round(only({"node1", "node3"}), begin).kind == RulingKind::Leads);
  CHECK(mandate.after_loss(only({"node1"}), begin).kind == RulingKind::GivesWay);
  CHECK(mandate.before_round(only({"node1"}), begin).kind == RulingKind::GivesWay);
}

TEST_CASE("half of a round waits for the arbiter, and keeps its word before the next one",
          "[rendezvous][job]") {
  Mandate mandate = of_nodes(2, Arbitration::Halves);
  const auto alone = only({"node1"});

  const auto asked = mandate.after_loss(alone, begin);
  REQUIRE(asked.kind == RulingKind::Waits);
  CHECK_FALSE(given(asked).rounds.empty());
  CHECK(asked.ask->leads);
  CHECK_FALSE(asked.ask->keep);
  // Once is enough.
  CHECK_FALSE(mandate.after_loss(alone, begin).ask);
  CHECK(mandate.before_round(alone, begin).kind == RulingKind::Waits);
  CHECK(mandate.next_tick() == begin + 20s);

  CHECK(mandate.on_word(given(asked)).kind == RulingKind::Leads);
  const auto keep = mandate.before_round(alone, begin + 1s);
  REQUIRE(keep.kind == RulingKind::Waits);
  CHECK(keep.ask->keep);
  CHECK(mandate.on_word(given(keep, Word::Kind::Kept)).kind == RulingKind::Leads);
  CHECK(mandate.before_round(alone, begin + 2s).kind == RulingKind::Leads);
  CHECK_FALSE(mandate.next_tick());
}

TEST_CASE("a kept word settles the round that it is about", "[rendezvous][job]") {
  Mandate mandate = of_nodes(2, Arbitration::Halves);
  const auto alone = only({"node1"});
  mandate.on_word(given(mandate.after_loss(alone, begin)));
  const Word kept = given(mandate.before_round(alone, begin), Word::Kind::Kept);
  mandate.round_closed(council_of_nodes(1), 1);
  // One of the two before, and the other may have been chosen without knowing of this round ...
  CHECK_FALSE(mandate.started("node1"));
  REQUIRE_FALSE(mandate.succession(0).before.empty());

  // ... which nobody can any more once the word is kept.
  CHECK(mandate.on_word(kept).settled);
  CHECK(mandate.succession(0).before.empty());
}

TEST_CASE("the arbiter's word has the last say, and a limit", "[rendezvous][job]") {
  Mandate mandate = of_nodes(2, Arbitration::Halves);
  const auto asked = mandate.after_loss(only({"node1"}), begin);

  SECTION("it names another one") {
    const auto ruling = mandate.on_word(given(asked, Word::Kind::Refused));
    CHECK(ruling.kind == RulingKind::GivesWay);
    CHECK(ruling.why.find("host2 at 10.0.0.2 has claimed the job") == 0);
  }
  SECTION("it says nothing") {
    CHECK(mandate.on_tick(begin + 19s).kind == RulingKind::Waits);
    const auto ruling = mandate.on_tick(begin + 20s);
    CHECK(ruling.kind == RulingKind::Ends);
    CHECK(ruling.why.find("has not said within 20 s whether it goes on") != std::string::npos);
  }
  SECTION("it is not there") {
    CHECK(mandate.on_word(given(asked, Word::Kind::Unreached)).kind == RulingKind::Waits);
    const auto ruling = mandate.on_tick(begin + 20s);
    CHECK(ruling.kind == RulingKind::Ends);
    CHECK(ruling.why == "the server is away");
  }
}

TEST_CASE("the vote of the one that leaves counts for its successor", "[rendezvous][job]") {
  Mandate mandate = of_nodes(4);

  CHECK(mandate.can_be_handed_over(only({"node2", "node3"})));
  CHECK_FALSE(mandate.can_be_handed_over(only({"node2"})));
}

TEST_CASE(
    "16.1: half of a round leads on with the arbiter's word when one has left and one is lost",
    "[rendezvous][job]") {
  Mandate first = of_nodes(4, Arbitration::Halves);
  CHECK(first.resigned("node4"));

  Mandate next(
      {.coordinator = "node2", .may_be_taken_over = true, .arbitration = Arbitration::Halves});
  next.inherit({.term = 1, .succession = first.succession(0), .given = {first.round()}});
  CHECK(next.after_loss(only({"node2", "node3"}), begin).kind == RulingKind::Leads);
  CHECK(next.after_loss(only({"node2"}), begin).kind == RulingKind::Leads);
  CHECK(next.succession(0).resigned == std::vector<std::string>{"node4"});
}

TEST_CASE("16.1: a round is known by its term and its attempt, and no attempt is used twice",
          "[rendezvous][job]") {
  Mandate mandate({.coordinator = "node2", .may_be_taken_over = true});
  CHECK(mandate.round() == RoundName{0, -1});
  Inherited inherited{.term = 3};
  inherited.succession = {.term = 2, .round = {1, 4}};
  mandate.inherit(inherited);

  CHECK(mandate.term() == 3);
  CHECK(mandate.round() == RoundName{1, 4});
  CHECK(mandate.is_last_round({.term = 1, .attempt = 4}));
  CHECK_FALSE(mandate.is_last_round({.term = 2, .attempt = 4}));
  CHECK_FALSE(mandate.is_last_round({.term = 1, .attempt = 3}));

  mandate.attempt_seen(7);
  mandate.round_closed(council_of_nodes(2), 2);
  CHECK(mandate.round() == RoundName{3, 8});
}
