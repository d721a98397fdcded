// Who is on the roster, and with which part.
#include "rendezvous/job/roster.h"

#include <algorithm>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;
using Node = Roster::Node;
using Part = Roster::Part;
using Peers = std::vector<PeerId>;

namespace {

Node& join(Roster& roster, PeerId peer, const std::string& id, const std::string& replaces = "") {
  return roster.add(peer, Hello{.node_id = id, .replaces = replaces}, Liveness(5s, TimePoint()));
}

// A node for each part given, with peers from 1.
Roster with_parts(const std::vector<Part>& parts) {
  Roster roster;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    join(roster, i + 1, "id" + std::to_string(i + 1)).part = parts[i];
  }
  return roster;
}

}  // namespace

TEST_CASE("nodes stand in join order, and one that goes leaves the others there",
          "[rendezvous][roster]") {
  Roster roster;
  for (const PeerId peer : {7, 3, 5}) join(roster, peer, "id" + std::to_string(peer));

  CHECK(roster.remove(3)->hello.node_id == "id3");
  CHECK_FALSE(roster.remove(3));

  REQUIRE(roster.size() == 2);
  CHECK(roster[0].peer == 7);
  CHECK(roster[1].peer == 5);
  CHECK(roster.find(3) == nullptr);
  CHECK(roster.with_id("id3") == nullptr);
  CHECK(roster.with_id("id5") == roster.find(5));
}

TEST_CASE("what the job asks of all parts together", "[rendezvous][roster]") {
  using enum Part;
  struct Case {
    std::vector<Part> parts;
    bool any_has_workers;
    bool has_place;  // Of two.
    Peers members;
  };
  const Case cases[] = {
      {{}, false, true, {}},
      {{Idle}, false, true, {}},
      {{Running}, true, true, {1}},
      {{Running, Idle}, true, true, {1}},
      {{Running, Running}, true, false, {1, 2}},
      {{Running, Running, Idle}, true, false, {1, 2}},
      {{Running, Succeeded}, true, false, {1, 2}},
      {{Succeeded, Idle}, true, false, {1}},
      {{Running, Reaped}, true, true, {1, 2}},
      {{Reaped, Reaped}, false, true, {1, 2}},
      {{Succeeded, Reaped}, true, false, {1, 2}},
  };
  for (const Case& c : cases) {
    const Roster roster = with_parts(c.parts);
    CAPTURE(&c - cases);
    CHECK(roster.any_has_workers() == c.any_has_workers);
    CHECK(roster.has_place(2) == c.has_place);
    CHECK(roster.members() == c.members);
    for (const Part part : {Idle, Running, Succeeded, Reaped}) {
      CHECK(roster.any(part) == (std::count(c.parts.begin(), c.parts.end(), part) > 0));
    }
  }
}

TEST_CASE("an attempt begins with no part for anybody", "[rendezvous][roster]") {
  Roster roster = with_parts({Part::Running, Part::Reaped, Part::Succeeded});
  roster[0].started = true;
  roster[0].group_rank = 1;
  roster.attempt_begins();
  CHECK(roster.members().empty());
  CHECK_FALSE(roster[0].started);
  CHECK(roster[0].group_rank == -1);
}

TEST_CASE("a founder that was cut off comes back as one, by an id that serves once",
          "[rendezvous][roster]") {
  Roster roster;
  roster.make_founder(join(roster, 1, "first"));
  join(roster, 2, "later");
  roster.remove(1);
  roster.remove(2);

  CHECK(join(roster, 3, "again", "first").founder);
  CHECK_FALSE(join(roster, 4, "thief", "first").founder);
  CHECK_FALSE(join(roster, 5, "later again", "later").founder);
  CHECK_FALSE(join(roster, 6, "new").founder);
  roster.remove(3);
  CHECK(join(roster, 7, "once more", "again").founder);
}
