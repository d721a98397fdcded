// One question to all nodes: who is asked, who is waited for, and what counts as an answer.
#include "rendezvous/job/gathering.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

namespace {

constexpr int number = 7;

// The coordinator's own node, two that answer, and one of an older ddprun.
std::vector<NodeTold> four_nodes() {
  return {{.peer = 4, .host = "d", .group_rank = 3},
          {.peer = 2, .host = "b", .group_rank = 1, .tells = true},
          {.peer = 1, .host = "a", .group_rank = 0, .is_own = true, .tells = true},
          {.peer = 3, .host = "c", .group_rank = 2, .tells = true}};
}

std::string text_of(const Gathering& gathering, std::size_t node) {
  return gathering.nodes().at(node).text.value_or("none");
}

}  // namespace

TEST_CASE("17.2: nodes that can tell are asked, in the order of ranks, and waited for",
          "[rendezvous][gathering]") {
  Gathering gathering(number, four_nodes(), {});
  CHECK(gathering.to_ask() == std::vector<PeerId>{2, 3});
  CHECK(gathering.nodes()[0].host == "a");
  CHECK(gathering.nodes()[3].host == "d");
  CHECK_FALSE(gathering.complete());

  gathering.hear(2, {number, "{\"a\":", true});
  CHECK(text_of(gathering, 1) == "none");  // Half of it.
  gathering.hear(3, {number, "{}", false});
  CHECK_FALSE(gathering.complete());
  gathering.hear(2, {number, "1}", false});
  CHECK(gathering.complete());
  CHECK(text_of(gathering, 0) == "none");
  CHECK(text_of(gathering, 1) == "{\"a\":1}");
  CHECK(text_of(gathering, 2) == "{}");
  CHECK(text_of(gathering, 3) == "none");
  CHECK(gathering.late().peers.empty());
}

TEST_CASE("17.2: what nobody was asked, and what comes twice, is passed over",
          "[rendezvous][gathering]") {
  Gathering gathering(number, four_nodes(), {});
  gathering.hear(4, {number, "unasked", false});
  gathering.hear(1, {number, "own", false});
  gathering.hear(9, {number, "nobody", false});
  gathering.hear(2, {number - 1, "of an earlier question", false});
  gathering.hear(3, {number, "{}", false});
  gathering.hear(3, {number, "again", false});
  CHECK(text_of(gathering, 0) == "none");
  CHECK(text_of(gathering, 1) == "none");
  CHECK(text_of(gathering, 2) == "{}");
  CHECK(text_of(gathering, 3) == "none");
}

TEST_CASE("17.2: one that has gone, or did not answer the last time, holds nobody up",
          "[rendezvous][gathering]") {
  Gathering first(number, four_nodes(), {});
  first.gone(2);
  CHECK_FALSE(first.complete());
  CHECK(first.late().peers == std::vector<PeerId>{3});

  Gathering second(number + 1, four_nodes(), first.late());
  CHECK(second.to_ask() == std::vector<PeerId>{2, 3});  // Asked it is.
  second.hear(2, {number + 1, "{}", false});
  CHECK(second.complete());
  // Its answer counts while anybody else is waited for.
  second.hear(3, {number + 1, "{}", false});
  CHECK(text_of(second, 2) == "{}");
  CHECK(second.late().peers.empty());
}

TEST_CASE("17.2: an answer without an end is given up", "[rendezvous][gathering]") {
  Gathering gathering(number, four_nodes(), {});
  const std::string piece(told_piece_bytes_max, 'x');
  for (std::size_t i = 0; i < Gathering::node_bytes_max / piece.size(); ++i) {
    gathering.hear(2, {number, piece, true});
  }
  gathering.hear(2, {number, "x", false});
  CHECK(text_of(gathering, 1) == "none");
  gathering.hear(2, {number, "{}", false});
  CHECK(text_of(gathering, 1) == "none");
  gathering.hear(3, {number, "{}", false});
  CHECK(gathering.complete());
  CHECK(gathering.late().peers.empty());
}

TEST_CASE("17.2: all nodes together may not fill the coordinator's memory",
          "[rendezvous][gathering]") {
  std::vector<NodeTold> nodes;
  const std::size_t count = Gathering::total_bytes_max / Gathering::node_bytes_max + 2;
  for (PeerId peer = 1; peer <= count; ++peer) {
    nodes.push_back({.peer = peer, .group_rank = static_cast<int>(peer), .tells = true});
  }
  Gathering gathering(number, nodes, {});
  std::size_t bytes = 0;
  for (PeerId peer = 1; peer <= count; ++peer) {
    gathering.hear(peer, {number, std::string(Gathering::node_bytes_max, 'x'), false});
  }
  for (const NodeTold& node : gathering.nodes()) bytes += node.text.value_or("").size();
  CHECK(bytes == Gathering::total_bytes_max);
  CHECK(gathering.complete());
}
