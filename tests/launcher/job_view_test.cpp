// What a launcher shows of the other nodes, whose answers come when the test says so.
#include "launcher/job_view.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
namespace rendezvous = ddprun::rendezvous;

namespace {

// A node with its questions to others, and what it has shown.
struct Node {
  bool leads = true;
  std::string asked;
  std::function<void(const std::vector<rendezvous::NodeTold>&)> nodes;
  std::function<void(const rendezvous::QueryAnswer&)> coordinator;
  std::optional<std::vector<std::string>> shown;

  JobView view(bool alone = false) {
    return {alone,
            {.host = "node1", .launcher_id = "5a17", .launcher_pid = 77},
            {.leads = [this] { return leads; },
             .ask_nodes =
                 [this](const rendezvous::Query& query, std::chrono::milliseconds, auto done) {
                   asked = query.what;
                   nodes = std::move(done);
                 },
             .ask_coordinator = [this](const rendezvous::Query&, std::chrono::milliseconds,
                                       auto done) { coordinator = std::move(done); }}};
  }
  std::function<void(NodeLines)> ask(JobView& view) {
    return view.lines({.what = "stacks"}, [this](const std::vector<NodeLines>& all) {
      REQUIRE_FALSE(shown);
      shown = nodes_text(all);
    });
  }
};

const NodeLines own{.host = "node1", .node_rank = 1, .lines = {"of node 1"}, .why = {}};

std::vector<rendezvous::NodeTold> told() {
  std::vector<rendezvous::NodeTold> nodes(3);
  for (int i = 0; i < 3; ++i) {
    auto& node = nodes[static_cast<std::size_t>(i)];
    node.host = "node" + std::to_string(i);
    node.group_rank = i;
    node.tells = true;
  }
  nodes[0].text = R"({"lines": ["of node 0"]})";
  nodes[1].is_own = true;
  return nodes;
}

const std::vector<std::string> all_lines = {"node 0 on node0", "of node 0", "node 1 on node1",
                                            "of node 1", "node 2 on node2: it does not answer"};

}  // namespace

TEST_CASE("17.2: the others are asked for their lines while this node takes its own", "[watch]") {
  for (const bool own_first : {true, false}) {
    Node node;
    JobView view = node.view();
    const auto take_own = node.ask(view);
    REQUIRE(node.nodes);  // Before this node has any.
    if (own_first) take_own(own);
    CHECK_FALSE(node.shown);
    node.nodes(told());
    if (!own_first) {
      CHECK_FALSE(node.shown);
      take_own(own);
    }
    CHECK(node.shown == all_lines);
  }
}

TEST_CASE("17.2: of a node that does not coordinate its own lines stand among the others'",
          "[watch]") {
  Node node{.leads = false};
  JobView view = node.view();
  const auto take_own = node.ask(view);
  REQUIRE(node.coordinator);
  take_own(own);
  CHECK_FALSE(node.shown);
  // The coordinator has had nothing from it in time.
  rendezvous::QueryAnswer answer;
  answer.text =
      R"({"nodes": [{"host": "node0", "node_rank": 0, "lines": ["of node 0"], "why": ""},)"
      R"( {"host": "node1", "node_rank": 1, "lines": [], "why": "it does not answer"},)"
      R"( {"host": "node2", "node_rank": 2, "lines": [], "why": "it does not answer"}]})";
  node.coordinator(answer);
  CHECK(node.shown == all_lines);
}

TEST_CASE("17.2: another launcher of this host with this one's pid is another node", "[watch]") {
  Node node{.leads = false};
  JobView view = node.view();
  view.refresh([] {});
  JobSnapshot told{.host = "node1", .launcher_id = "c0de", .launcher_pid = 77};
  told.others = {{.host = "node1", .age_s = 0, .launcher_id = "5a17", .launcher_pid = 77}};
  rendezvous::QueryAnswer answer;
  answer.text = to_json(told);
  node.coordinator(answer);
  REQUIRE(view.others().size() == 1);
  CHECK(view.others()[0].launcher_id == "c0de");
}

TEST_CASE("17.2: where no coordinator answers, this node's own lines are shown, and why",
          "[watch]") {
  Node node{.leads = false};
  JobView view = node.view();
  const auto take_own = node.ask(view);
  rendezvous::QueryAnswer answer;
  answer.why = "it is halted";
  node.coordinator(answer);
  take_own(own);
  CHECK(node.shown == std::vector<std::string>{
                          "node 1 on node1", "of node 1",
                          "node on other hosts: the coordinator does not answer: it is halted"});

  Node alone;
  JobView view_of_alone = alone.view(/*alone=*/true);
  alone.ask(view_of_alone)(own);
  CHECK(alone.shown == std::vector<std::string>{"node 1 on node1", "of node 1"});
}

TEST_CASE("16.3: paces are asked of the others by the node that leads, and of no lone one",
          "[watch]") {
  Node node;
  JobView view = node.view();
  CHECK(view.leads());
  CHECK_FALSE(node.view(/*alone=*/true).leads());
  std::optional<std::vector<NodePaces>> others;
  view.paces(8, std::chrono::seconds(5),
             [&](std::vector<NodePaces> paces) { others = std::move(paces); });
  CHECK(node.asked == "paces");
  auto nodes = told();  // Node 0 is too old, node 1 asks, node 2 tells nothing in time.
  nodes.push_back({.host = "node3", .group_rank = 3, .tells = true});
  nodes[3].text = R"({"stands": false, "ranks": [{"rank": 5, "own_us": 9000, "step_us": 20000}]})";
  node.nodes(nodes);
  REQUIRE(others);
  REQUIRE(others->size() == 1);
  CHECK(others->at(0).node == 3);
  CHECK(others->at(0).host == "node3");
  REQUIRE(others->at(0).ranks.size() == 1);
  CHECK(others->at(0).ranks[0].rank == 5);
}

TEST_CASE("17.2: the coordinator is asked for the stacks of all ranks, or it is said why not",
          "[watch]") {
  const auto ask = [](const rendezvous::QueryAnswer& answer) {
    Node node;
    node.leads = false;
    const JobView view = node.view();
    JobStackLines told;
    view.job_stacks([&](const JobStackLines& lines) { told = lines; });
    node.coordinator(answer);
    return told;
  };
  CHECK(ask({.text = R"({"lines": ["rank 1"]})"}).lines == std::vector<std::string>{"rank 1"});
  // As one answers that does not know the question.
  CHECK(ask({.text = R"({"nodes": []})"}).why ==
        "the ddprun that coordinates the job is too old to tell");
  CHECK(ask({.why = "timed out"}).why == "the coordinator does not answer: timed out");
  CHECK(ask({.moved = rendezvous::Seat{}}).why == "another node coordinates the job");
}
