// Who takes part in a round, with which ranks, and when. No test sleeps: time is an argument.
#include "rendezvous/job/round.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const TimePoint start{};

RoundLimits static_limits(int nodes) {
  return {.elastic = false, .nodes_min = nodes, .nodes_max = nodes, .join_timeout = 600s};
}
RoundLimits elastic_limits(int min, int max) {
  return {
      .elastic = true, .nodes_min = min, .nodes_max = max, .join_timeout = 600s, .last_call = 30s};
}
RoundNode node(std::optional<int> rank = {}, int nproc = 1, std::string_view role = "default") {
  return {.host = "host-h", .from = "10.0.0.7", .node_rank = rank, .nproc = nproc, .role = role};
}
std::vector<std::size_t> order(const RoundDecision& decision) {
  std::vector<std::size_t> result;
  for (const Place& place : decision.members) result.push_back(place.node);
  return result;
}
using Kind = RoundDecision::Kind;
using Order = std::vector<std::size_t>;

}  // namespace

TEST_CASE("a static round closes when every rank is there, by rank", "[rendezvous][round]") {
  RoundState state{.nodes = {node(2), node(0)}, .opened = start};
  const RoundDecision waiting = decide(state, static_limits(3), start + 12s);
  INFO(waiting.reason);
  CHECK(waiting.kind == Kind::Wait);
  CHECK(waiting.reason == "waiting for node 1 (2 of 3 nodes here, 588 s left)");

  state.nodes.push_back(node(1));
  const RoundDecision closed = decide(state, static_limits(3), start + 13s);

  CHECK(closed.kind == Kind::Close);
  CHECK(order(closed) == Order{1, 2, 0});
}

TEST_CASE("a static round that lacks nodes names them when time is up", "[rendezvous][round]") {
  const RoundState state{.nodes = {node(0)}, .opened = start};

  const RoundDecision decision = decide(state, static_limits(20), start + 600s);

  CHECK(decision.kind == Kind::TimedOut);
  CHECK(decision.reason ==
        "nodes 1, 2, 3, 4, 5, 6, 7, 8 and 11 more did not join within 600 s (1 of 20 nodes came)");
}

TEST_CASE("ranks count the workers of the nodes before, and those of the same role",
          "[rendezvous][round]") {
  const RoundState state{.nodes = {node(0, 2, "ps"), node(1, 3, "trainer"), node(2, 4, "ps")},
                         .opened = start};

  const auto members = decide(state, static_limits(3), start).members;

  REQUIRE(members.size() == 3);
  CHECK(members[0].rank_base == 0);
  CHECK(members[1].rank_base == 2);
  CHECK(members[2].rank_base == 5);
  CHECK(members[2].role_rank_base == 2);
  CHECK(members[2].role_world_size == 6);
  CHECK(members[1].role_world_size == 3);
  CHECK(members[0].world_size == 9);
}

TEST_CASE("an elastic round waits for the last call, then goes on with who is there",
          "[rendezvous][round]") {
  RoundState state{.nodes = {node(), node()}, .opened = start, .enough_since = start + 10s};
  const RoundDecision waiting = decide(state, elastic_limits(2, 4), start + 39s);
  CHECK(waiting.kind == Kind::Wait);
  CHECK(waiting.look_again == start + 40s);
  CHECK(waiting.reason == "2 of 2 to 4 nodes joined, last call for 1 s");

  CHECK(decide(state, elastic_limits(2, 4), start + 40s).kind == Kind::Close);
}

TEST_CASE("an elastic round closes at once when it is full", "[rendezvous][round]") {
  const RoundState state{.nodes = {node(), node(), node()}, .opened = start, .enough_since = start};

  CHECK(decide(state, elastic_limits(1, 3), start).kind == Kind::Close);
}

TEST_CASE("a round that re-forms has no last call", "[rendezvous][round]") {
  const RoundState state{
      .nodes = {node(), node()}, .opened = start, .enough_since = start, .reforming = true};

  CHECK(decide(state, elastic_limits(2, 4), start).kind == Kind::Close);
  CHECK(decide(state, elastic_limits(3, 4), start).kind == Kind::Wait);
}

TEST_CASE("elastic ranks follow join order, with the endpoint's host first",
          "[rendezvous][round]") {
  RoundState state{.nodes = {node(), node(), node()}, .opened = start};
  state.nodes[2].hosts_endpoint = true;

  CHECK(order(decide(state, elastic_limits(1, 3), start)) == Order{2, 0, 1});
}

TEST_CASE("a node rank that was given is honoured in an elastic round", "[rendezvous][round]") {
  RoundState state{.nodes = {node(), node(0), node(), node(9)}, .opened = start};
  state.nodes[2].hosts_endpoint = true;

  CHECK(order(decide(state, elastic_limits(1, 4), start)) == Order{1, 2, 0, 3});
}

TEST_CASE("nodes beyond the maximum are spares, never the endpoint's host", "[rendezvous][round]") {
  RoundState state{.nodes = {node(), node(), node()}, .opened = start};
  state.nodes[2].hosts_endpoint = true;

  CHECK(order(decide(state, elastic_limits(1, 2), start)) == Order{2, 0});
}

TEST_CASE("two elastic nodes that claim the same rank both get one", "[rendezvous][round]") {
  const RoundState state{.nodes = {node(1), node(1)}, .opened = start};

  CHECK(order(decide(state, elastic_limits(1, 2), start)) == Order{1, 0});
}

TEST_CASE("a hello that does not belong here is refused with the reason", "[rendezvous][round]") {
  const RoundLimits limits = static_limits(2);
  const Hello good{.run_id = "job", .host = "b", .node_rank = 1, .nnodes_min = 2, .nnodes_max = 2};
  const std::vector<RoundNode> present{node(0)};
  const auto refusal = [&](auto change) {
    Hello hello = good;
    change(hello);
    return check_hello(hello, "job", limits, present).value_or(Refusal{});
  };
  const auto contains = [](const std::string& text, const char* part) {
    INFO(text);
    return text.find(part) != std::string::npos;
  };

  CHECK_FALSE(check_hello(good, "job", limits, present));
  CHECK(contains(refusal([](Hello& h) { h.run_id = "other"; }).logged,
                 "asked for the job \"other\", this is \"job\""));
  CHECK(contains(refusal([](Hello& h) { h.version = 9; }).told, "speaks 9"));
  CHECK(contains(refusal([](Hello& h) { h.nnodes_max = 3; }).logged, "--nnodes 2:2"));
  CHECK(contains(refusal([](Hello& h) { h.elastic = true; }).told, "c10d"));
  CHECK(contains(refusal([](Hello& h) { h.node_rank = 2; }).told, "ranks 0 to 1"));
  CHECK(contains(refusal([](Hello& h) { h.node_rank.reset(); }).told, "out of range"));
  CHECK(contains(refusal([](Hello& h) { h.node_rank = 0; }).logged, "host-h at 10.0.0.7 has"));
}

TEST_CASE("15.5: a refusal tells nobody what he did not say himself", "[rendezvous][round]") {
  const RoundLimits limits{.elastic = true, .nodes_min = 3, .nodes_max = 17};
  const auto told = [&](const Hello& hello) {
    return check_hello(hello, "right-id", limits, {}).value_or(Refusal{}).told;
  };

  const std::string wrong_id = told({.run_id = "guess\033[2J", .host = "b"});
  CHECK(wrong_id.find("another job than \"guess^[[2J\"") != std::string::npos);
  CHECK(wrong_id.find("right-id") == std::string::npos);

  const std::string wrong_size = told({.run_id = "right-id", .host = "b", .nnodes_max = 5});
  CHECK(wrong_size.find("1:5 and --rdzv-backend static are not") != std::string::npos);
  for (const char* secret : {"3", "17", "c10d"}) {
    CHECK(wrong_size.find(secret) == std::string::npos);
  }

  const RoundLimits fixed = static_limits(2);
  const Hello second{
      .run_id = "job", .host = "b", .node_rank = 0, .nnodes_min = 2, .nnodes_max = 2};
  const std::string taken = check_hello(second, "job", fixed, {node(0)}).value_or(Refusal{}).told;
  CHECK(taken.find("--node-rank 0 is already taken: ") == 0);
  CHECK(taken.find("host-h") == std::string::npos);
  CHECK(taken.find("10.0.0.7") == std::string::npos);
}

TEST_CASE("who waits at a loopback address is told that other hosts cannot come",
          "[rendezvous][round]") {
  RoundLimits limits = static_limits(2);
  limits.loopback = true;
  const RoundState state{.nodes = {node(0)}, .opened = start};
  CHECK(decide(state, limits, start + 12s).reason ==
        "waiting for node 1 (1 of 2 nodes here, 588 s left); other hosts cannot reach the "
        "endpoint, a loopback address");
  CHECK(decide(state, limits, start + 600s).reason ==
        "node 1 did not join within 600 s (1 of 2 nodes came); other hosts cannot reach the "
        "endpoint, a loopback address");
}
