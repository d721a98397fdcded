// Nodes that are not fit for their job: they leave it, and what becomes of the others. Whether one
// is fit, a file says, as a sick machine's would.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;

namespace {

// Launchers on this machine, each of which is a node.
class Nodes {
 public:
  explicit Nodes(std::vector<std::string> shape) : shape_(std::move(shape)) {}

  std::string sick_file(int node) const { return folder_ / ("sick" + std::to_string(node)); }
  void fall_sick(int node) const { std::ofstream(sick_file(node)) << "GPU 3 was lost\n"; }

  Process& start(int node, const std::vector<std::string>& options = {}) {
    const std::string sick = sick_file(node);
    nodes_.push_back(std::make_unique<Process>(
        launch(shape_) +
        std::vector<std::string>{"--rdzv-endpoint", endpoint_, "--node-check",
                                 "! cat " + sick + " 2>/dev/null"} +
        options + shell(program_)));
    return *nodes_.back();
  }

 private:
  const TemporaryFolder folder_;
  const std::string endpoint_ = "127.0.0.1:" + std::to_string(free_port());
  const std::vector<std::string> shape_;
  // Each worker ends by a signal of its own: USR1 well, USR2 not.
  const std::string program_ = read_pid +
                               "trap 'exit 0' USR1; trap 'exit 3' USR2; "
                               "echo \"attempt $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE is pid "
                               "$pid,\"; while :; do sleep 0.02; done";
  std::vector<std::unique_ptr<Process>> nodes_;
};

void signal_worker(const Process& node, const std::string& attempt, int signal) {
  ::kill(number_after(node.output(), attempt + " is pid "), signal);
}

const std::vector<std::string> elastic = {
    "--nnodes",       "1:2", "--rdzv-backend", "c10d",
    "--max-restarts", "3",   "--rdzv-conf",    "last_call_timeout=60"};

}  // namespace

TEST_CASE("an elastic job goes on without a node that is not fit any more",
          "[launcher][node_check]") {
  Nodes nodes(elastic);
  Process& first = nodes.start(0);
  REQUIRE(first.wait_for_output("1 of 1 to 2 nodes joined", 60s));
  Process& second = nodes.start(1);
  REQUIRE(second.wait_for_output("attempt 0 of 2 is pid", 60s));
  REQUIRE(first.wait_for_output("attempt 0 of 2 is pid", 60s));

  nodes.fall_sick(1);
  signal_worker(second, "attempt 0 of 2", SIGUSR2);
  const auto gone = second.wait(60s);
  INFO(gone.output);
  CHECK(gone.status == 69);
  CHECK(contains(gone.output, "[node check]: GPU 3 was lost"));
  CHECK(contains(gone.output, "is not fit for the job: its --node-check ended with 1: GPU 3"));

  const bool went_on = first.wait_for_output("attempt 1 of 1 is pid", 60s);
  INFO(first.output());
  REQUIRE(went_on);
  CHECK(contains(first.output(), "is not fit for the job: its --node-check ended with 1: GPU 3"));
  signal_worker(first, "attempt 1 of 1", SIGUSR1);
  CHECK(first.wait(60s).status == 0);
}

TEST_CASE("the node that coordinates an elastic job of three hands it over when it is not fit",
          "[launcher][node_check]") {
  Nodes nodes({"--nnodes", "2:3", "--rdzv-backend", "c10d", "--max-restarts", "3"});
  Process& first = nodes.start(0);
  REQUIRE(first.wait_for_output("1 of 2 nodes here", 60s));
  Process& second = nodes.start(1);
  Process& third = nodes.start(2);
  for (Process* node : {&first, &second, &third}) {
    REQUIRE(node->wait_for_output("attempt 0 of 3 is pid", 60s));
  }
  nodes.fall_sick(0);
  signal_worker(second, "attempt 0 of 3", SIGUSR2);
  const auto gone = first.wait(60s);
  INFO(gone.output);
  CHECK(gone.status == 69);
  for (Process* node : {&second, &third}) {
    const bool went_on = node->wait_for_output("attempt 1 of 2 is pid", 60s);
    INFO(node->output());
    REQUIRE(went_on);
  }
  for (Process* node : {&second, &third}) signal_worker(*node, "attempt 1 of 2", SIGUSR1);
  for (Process* node : {&second, &third}) CHECK(node->wait(60s).status == 0);
}

TEST_CASE("a static job ends when one of its nodes is not fit, and all say which",
          "[launcher][node_check]") {
  Nodes nodes({"--nnodes", "2", "--max-restarts", "3"});
  Process& first = nodes.start(0, {"--node-rank", "0"});
  Process& second = nodes.start(1, {"--node-rank", "1"});
  for (Process* node : {&first, &second}) {
    REQUIRE(node->wait_for_output("attempt 0 of 2 is pid", 60s));
  }
  nodes.fall_sick(1);
  signal_worker(first, "attempt 0 of 2", SIGUSR2);
  const auto sick = second.wait(60s), other = first.wait(60s);
  INFO(other.output);
  INFO(sick.output);
  CHECK(sick.status == 69);
  CHECK(other.status == 75);
  for (const auto& node : {sick, other}) {
    CHECK(contains(node.output, "is not fit for the job: its --node-check ended with 1: GPU 3"));
  }
}

TEST_CASE("a node that is not fit joins no job, and is no reason to interrupt it",
          "[launcher][node_check]") {
  Nodes nodes(elastic);
  nodes.fall_sick(1);
  Process& first = nodes.start(0);
  REQUIRE(first.wait_for_output("1 of 1 to 2 nodes joined", 60s));
  const auto sick = nodes.start(1).wait(60s);
  INFO(sick.output);
  CHECK(sick.status == 69);
  CHECK(contains(sick.output, "this node is not fit for the job: "));
  first.read_pending();
  CHECK_FALSE(contains(first.output(), "2 of 1 to 2"));
}

TEST_CASE("a node that falls ill while it stands by leaves, and the job does not notice",
          "[launcher][node_check]") {
  Nodes nodes({"--nnodes", "2:2", "--rdzv-backend", "c10d", "--max-restarts", "3"});
  Process& first = nodes.start(0);
  Process& second = nodes.start(1);
  for (Process* node : {&first, &second}) {
    REQUIRE(node->wait_for_output("attempt 0 of 2 is pid", 60s));
  }
  // Asked again after 6 s: less would be too little for a check on a busy machine.
  Process& spare = nodes.start(2, {"--node-check-timeout", "3"});
  REQUIRE(spare.wait_for_output("this node stands by as a spare", 60s));

  nodes.fall_sick(2);
  const auto sick = spare.wait(60s);
  INFO(sick.output);
  CHECK(sick.status == 69);
  CHECK(contains(sick.output, "is not fit for the job: its --node-check ended with 1: GPU 3"));
  CHECK_FALSE(contains(sick.output, "node -1"));  // It has never had a rank.

  for (Process* node : {&first, &second}) signal_worker(*node, "attempt 0 of 2", SIGUSR1);
  for (Process* node : {&first, &second}) {
    const auto job = node->wait(60s);
    INFO(job.output);
    CHECK(job.status == 0);
    CHECK_FALSE(contains(job.output, "attempt 1"));
  }
}

TEST_CASE("what is asked of the launcher does not wait for the check of its node",
          "[launcher][node_check]") {
  Nodes nodes(elastic);
  SECTION("before it joins") {
    Process& node = nodes.start(0, {"--node-check", "echo asked >&2; sleep 1000"});
    REQUIRE(node.wait_for_output("waiting for this node's check, 30 s at most", 60s));
    node.send_signal(SIGTERM);
    const auto ended = node.wait(20s);
    INFO(ended.output);
    CHECK(ended.status == 75);
    CHECK(ended.seconds < 20);
  }
  SECTION("between two attempts") {
    const std::string sick = nodes.sick_file(0);
    Process& node =
        nodes.start(0, {"--nnodes", "1", "--node-check", "test ! -e " + sick + " || sleep 1000"});
    REQUIRE(node.wait_for_output("attempt 0 of 1 is pid", 60s));
    nodes.fall_sick(0);
    signal_worker(node, "attempt 0 of 1", SIGUSR2);
    REQUIRE(node.wait_for_output("waiting for this node's check, 30 s at most", 60s));
    node.send_signal(SIGTERM);
    const auto ended = node.wait(20s);
    INFO(ended.output);
    CHECK(ended.status == 75);
  }
}
