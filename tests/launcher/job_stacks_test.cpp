// The stacks of a whole job, which several ask for at the same time; nodes answer when the test
// says so.
#include "launcher/job_stacks.h"

#include <asio/io_context.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
namespace rendezvous = ddprun::rendezvous;

namespace {

using Lines = JobStacks::Lines;

// The node that coordinates a job of two.
struct Coordinating {
  Lines ask(int round) {
    Lines answer;
    stacks.collect(round, [&](const Lines& lines) { answer = lines; });
    return answer;
  }
  void ask_for_later(int round) {
    stacks.collect(round, [this](const Lines& lines) { answers.push_back(lines); });
  }
  void others_answer(const std::string& text) {
    std::vector<rendezvous::NodeTold> told(2);
    told[0].host = "a";
    told[0].group_rank = 0;
    told[0].is_own = told[0].tells = told[1].tells = true;
    told[1].host = "b";
    told[1].group_rank = 1;
    if (!text.empty()) told[1].text = R"x({"lines": ["rank 1 (pid 5)", "    )x" + text + R"x("]})x";
    nodes(told);
  }
  void own_answer() {
    own({.host = "a", .node_rank = 0, .lines = {"rank 0 (pid 4)", "    waits"}, .why = {}});
  }
  // What a thread has read comes from the loop.
  void run_until_answered() {
    while (answers.empty()) io.run_one();
  }

  asio::io_context io;
  int questions = 0;
  std::function<void(const std::vector<rendezvous::NodeTold>&)> nodes;
  std::function<void(NodeLines)> own;
  std::vector<Lines> answers;
  JobView view{false,
               {.host = "a", .launcher_id = "5a17", .launcher_pid = 77},
               {.leads = [] { return true; },
                .ask_nodes =
                    [this](const rendezvous::Query& query, std::chrono::milliseconds, auto done) {
                      CHECK(query.what == "stacks");
                      ++questions;
                      nodes = std::move(done);
                    },
                .ask_coordinator = {}}};
  JobStacks stacks{io, view, [this](auto done) { own = std::move(done); }};
};

const Lines of_all_nodes = {"node 0 on a: rank 0", "node 1 on b: rank 1",
                            "ranks 0-1, 2 that stand alike; of them", "rank 0 (pid 4)",
                            "    waits"};

}  // namespace

TEST_CASE("17.2: all who ask for a job's stacks at once have one answer, also a moment later",
          "[watch]") {
  for (const bool own_first : {true, false}) {
    Coordinating node;
    for (int i = 0; i < 3; ++i) node.ask_for_later(1);
    if (own_first) node.own_answer();
    node.others_answer("waits");
    if (!own_first) node.own_answer();
    CHECK(node.answers.empty());
    node.run_until_answered();
    CHECK(node.answers == std::vector<Lines>(3, of_all_nodes));
    CHECK(node.ask(1) == of_all_nodes);
    CHECK(node.questions == 1);

    // Of another attempt nothing is known.
    CHECK(node.ask(2).empty());
    CHECK(node.questions == 2);
  }
}

TEST_CASE("17.2: a node that has not answered is named among a job's stacks", "[watch]") {
  Coordinating node;
  node.ask_for_later(1);
  node.own_answer();
  node.others_answer("");
  node.run_until_answered();
  CHECK(node.answers.front() == Lines{"node 0 on a: rank 0", "node 1 on b: it does not answer",
                                      "rank 0 (pid 4)", "    waits"});
}
