// Elastic jobs whose node 0 is lost, in each of the ways that a node can be, on hosts of their own
// (tests/testing/network_hosts.h).
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/elastic_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/network_hosts.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;

TEST_CASE("16.1: when node 0's launcher is killed the next node takes over, and again the next") {
  SKIP_WITHOUT_HOSTS();
  // Of five, since the second loss may come before the first one's round is settled: the three that
  // are left are a majority of both rounds.
  ElasticJob job(5);
  job.node(0).send_signal(SIGKILL);
  for (int node = 1; node < 5; ++node) REQUIRE(job.runs_attempt(node, 1, 4, 1));
  CHECK(job.node(1).wait_for_output("coordinates the job from here on (term 1)", 60s));

  job.node(1).send_signal(SIGKILL);
  for (int node = 2; node < 5; ++node) REQUIRE(job.runs_attempt(node, 2, 3, 2));
  CHECK(job.node(2).wait_for_output("coordinates the job from here on (term 2)", 60s));
  job.succeeds({2, 3, 4});
}

TEST_CASE("16.1: SIGTERM on node 0 hands the job over, and it leaves as any other node") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(3);
  job.node(0).send_signal(SIGTERM);
  const auto ended = job.node(0).wait(60s);
  INFO(ended.output);
  CHECK(ended.status == 75);
  for (int node = 1; node < 3; ++node) REQUIRE(job.runs_attempt(node, 1, 2, 1));
  CHECK(job.node(1).wait_for_output("leaves after SIGTERM; the others go on", 60s));
  job.succeeds({1, 2});
}

TEST_CASE("16.1: a node that stands by when node 0 is lost takes part under the next coordinator") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(3, {}, "", /*spares=*/1);
  job.node(0).send_signal(SIGKILL);
  for (int node = 1; node < 4; ++node) REQUIRE(job.runs_attempt(node, 1, 3, 1));
  job.succeeds({1, 2, 3});
}

TEST_CASE("16.1: a static job waits for its node 0 under another coordinator, if it may") {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(3);
  const std::string program =
      "trap 'exit 0' USR1; "
      "echo \"attempt $TORCHELASTIC_RESTART_COUNT: rank $RANK at $MASTER_ADDR, term "
      "$DDPRUN_TERM\"; "
      "while :; do sleep 0.02; done";
  std::vector<std::unique_ptr<Process>> nodes(3);
  const auto start = [&](std::size_t node) {
    nodes[node] = std::make_unique<Process>(
        hosts.on(static_cast<int>(node),
                 launch({"--nnodes", "3", "--node-rank", std::to_string(node), "--master-addr",
                         NetworkHosts::address(0), "--master-port", "29500", "--max-restarts", "9",
                         "--forward-signals", "USR1", "--rdzv-conf",
                         "takeover=true,heartbeat_timeout=1,keep_alive_interval=0.2"}) +
                     shell(program)));
  };
  const auto runs_at = [&](std::size_t node, int host) {
    const bool there = nodes[node]->wait_for_output(": rank " + std::to_string(node) + " at " +
                                                        NetworkHosts::address(host) + ", term " +
                                                        (host == 0 ? "0" : "1"),
                                                    60s);
    for (const auto& process : nodes) UNSCOPED_INFO("a node said:\n" << process->output());
    return there;
  };
  for (std::size_t node = 0; node < 3; ++node) start(node);
  for (std::size_t node = 0; node < 3; ++node) REQUIRE(runs_at(node, 0));

  nodes[0]->send_signal(SIGKILL);
  REQUIRE(nodes[1]->wait_for_output("coordinates the job from here on (term 1)", 60s));
  start(0);
  for (std::size_t node = 0; node < 3; ++node) REQUIRE(runs_at(node, 1));
  for (const auto& node : nodes) node->send_signal(SIGUSR1);
  for (const auto& node : nodes) {
    const auto ended = node->wait(60s);
    INFO(ended.output);
    CHECK(ended.status == 0);
  }
}

TEST_CASE("16.1: when node 0 is unplugged the others go on, and it ends") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(3);
  job.hosts().set_plugged(0, false);
  REQUIRE(job.goes_on_at({1, 2}, 1) > 0);
  const auto ended = job.node(0).wait(60s);
  INFO(ended.output);
  CHECK(ended.status == 72);
  CHECK(contains(ended.output, "most nodes of the last round are out of this node's sight"));
  CHECK(contains(ended.output, "no node that was asked knows where the job goes on"));
  job.succeeds({1, 2});
}

TEST_CASE("16.1: a node 0 that was frozen steps down and joins the job that went on") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(3);
  job.node(0).send_signal(SIGSTOP);
  const int coordinator = job.goes_on_at({1, 2}, 1);
  REQUIRE(coordinator > 0);
  job.node(0).send_signal(SIGCONT);
  for (int node = 0; node < 3; ++node) REQUIRE(job.runs_attempt(node, 2, 3, coordinator));
  job.succeeds({0, 1, 2});
}

TEST_CASE("16.1: a node 0 that is started again after a takeover joins the job that went on") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(3);
  job.node(0).send_signal(SIGKILL);
  for (int node = 1; node < 3; ++node) REQUIRE(job.runs_attempt(node, 1, 2, 1));

  job.start(0);
  for (int node = 0; node < 3; ++node) REQUIRE(job.runs_attempt(node, 2, 3, 1));
  CHECK(job.node(0).wait_for_output("this node gives way to it", 60s));

  // And tells a new node, which knows the first endpoint alone, where the job is.
  job.node(2).send_signal(SIGKILL);
  for (int node = 0; node < 2; ++node) REQUIRE(job.runs_attempt(node, 3, 2, 1));
  job.start(2);
  for (int node = 0; node < 3; ++node) REQUIRE(job.runs_attempt(node, 4, 3, 1));
  job.succeeds({0, 1, 2});
}

// As when a JobSet restarts all pods in place: every launcher is told to end, node 0's container is
// gone at once and begins anew, and the others' still give their workers their grace. Of such a job
// nobody may lead the fresh node 0 back into what is ending.
TEST_CASE("17.3: elastic launchers that start again do not meet those that still end") {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(3);
  const auto start = [&](int host, const std::string& program) {
    return std::make_unique<Process>(
        hosts.on(host, launch({"--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                               NetworkHosts::address(0), "--rdzv-id", "train", "--shutdown-timeout",
                               "4", "--rdzv-conf", "heartbeat_timeout=1,keep_alive_interval=0.2"}) +
                           shell(program)));
  };
  std::vector<std::unique_ptr<Process>> old_nodes, nodes;
  for (int host = 0; host < 3; ++host) {
    old_nodes.push_back(start(host,
                              "trap '' TERM; echo \"old of $WORLD_SIZE\"; "
                              "while :; do sleep 0.1; done"));
  }
  for (const auto& node : old_nodes) REQUIRE(node->wait_for_output("old of 3", 60s));
  for (const auto& node : old_nodes) node->send_signal(SIGTERM);
  old_nodes[0]->send_signal(SIGKILL);
  old_nodes[0]->wait(20s);

  const std::string fresh = "echo \"new, attempt $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE\"";
  nodes.push_back(start(0, fresh));
  for (int host = 1; host < 3; ++host) {
    const auto ended = old_nodes[static_cast<std::size_t>(host)]->wait(60s);
    INFO(ended.output);
    CHECK(ended.ended);
    CHECK_FALSE(contains(ended.output, "attempt 1"));
    nodes.push_back(start(host, fresh));
  }
  for (const auto& node : nodes) {
    const auto ended = node->wait(60s);
    INFO(ended.output);
    CHECK(ended.status == 0);
    CHECK(contains(ended.output, "new, attempt 0 of 3"));
  }
}

TEST_CASE("16.1: a node that alone has lost node 0 joins the job again") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(4);
  job.hosts().cut_link(0, 3);
  for (int node = 0; node < 3; ++node) REQUIRE(job.runs_attempt(node, 1, 3, 0));
  REQUIRE(job.node(3).wait_for_output("the other nodes still hear it", 60s));
  REQUIRE(job.node(3).wait_for_output("joining the job again", 60s));
  job.node(3).send_signal(SIGTERM);
  CHECK(job.node(3).wait(60s).status == 75);
  job.succeeds({0, 1, 2});
}

TEST_CASE("16.1: half of the nodes are no majority: nobody takes over, and each says why") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(4);
  job.node(0).send_signal(SIGKILL);
  job.node(1).send_signal(SIGKILL);
  for (int node = 2; node < 4; ++node) {
    const auto ended = job.node(node).wait(60s);
    INFO("node " << node << ": " << ended.output);
    CHECK(ended.status == 72);
    CHECK(contains(ended.output, "no majority of the 4 nodes of the last round"));
  }
}

TEST_CASE("16.1: of two nodes the one that is left goes on with a tie-breaker") {
  SKIP_WITHOUT_HOSTS();
  const TemporaryFolder shared;
  const std::string tie = shared.path() + "/tie";
  ElasticJob job(2, {"--tie-breaker", tie});
  SECTION("node 0's launcher is killed") {
    job.node(0).send_signal(SIGKILL);
    REQUIRE(job.runs_attempt(1, 1, 1, 1));
    CHECK(job.node(1).wait_for_output("coordinates the job from here on (term 1)", 60s));
    job.succeeds({1});
  }
  SECTION("node 1's launcher is killed") {
    job.node(1).send_signal(SIGKILL);
    REQUIRE(job.runs_attempt(0, 1, 1, 0));
    job.succeeds({0});
  }
  CHECK(std::filesystem::is_empty(shared.path()));
}

// Four places, of which each must be filled before the next attempt: so the round of all four stays
// the last one, with the place of the node that left.
TEST_CASE("16.1: a node that said goodbye is not lost under the next coordinator") {
  SKIP_WITHOUT_HOSTS();
  const TemporaryFolder shared;
  const NetworkHosts hosts(4);
  std::vector<std::unique_ptr<Process>> nodes;
  const auto waits_for = [&](std::size_t node, const std::string& missing) {
    const bool waits = nodes[node]->wait_for_output("waiting for " + missing + " more node", 60s);
    UNSCOPED_INFO("node " << node << " said:\n" << nodes[node]->output());
    return waits;
  };
  for (int node = 0; node < 4; ++node) {
    nodes.push_back(std::make_unique<Process>(
        hosts.on(node, launch({"--nnodes", "4:4", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                               NetworkHosts::address(0) + ":29500", "--tie-breaker",
                               shared.path() + "/tie", "--max-restarts", "9", "--rdzv-conf",
                               "heartbeat_timeout=1,keep_alive_interval=0.2"}) +
                           shell("echo runs; sleep 600"))));
    // Ranks are given in the order of joining.
    if (node < 3) REQUIRE(waits_for(0, std::to_string(3 - node)));
  }
  for (const auto& node : nodes) REQUIRE(node->wait_for_output("runs", 60s));
  nodes[3]->send_signal(SIGTERM);
  CHECK(nodes[3]->wait(60s).status == 75);
  for (const std::size_t node : {1, 2}) {
    REQUIRE(nodes[node]->wait_for_output("(3 of 4 nodes here", 60s));
  }

  nodes[0]->send_signal(SIGKILL);
  const std::string leads = "coordinates the job from here on (term ";
  nodes[1]->wait_until(
      [&] { return contains(nodes[1]->output(), leads) || contains(nodes[2]->output(), leads); });
  // The lowest that is left, as a rule.
  const std::size_t leader = contains(nodes[2]->output(), leads) ? 2 : 1;
  REQUIRE(waits_for(leader, "2"));
  nodes[3 - leader]->send_signal(SIGKILL);
  REQUIRE(waits_for(leader, "3"));

  nodes[leader]->send_signal(SIGTERM);
  const auto ended = nodes[leader]->wait(60s);
  INFO(ended.output);
  CHECK(ended.status == 75);
  CHECK_FALSE(contains(ended.output, "out of this node's sight"));
}

TEST_CASE("16.1: a node 0 that is started again leaves no file of the job that it founded") {
  SKIP_WITHOUT_HOSTS();
  const TemporaryFolder shared;
  ElasticJob job(2, {"--tie-breaker", shared.path() + "/tie"});
  job.node(0).send_signal(SIGKILL);
  REQUIRE(job.runs_attempt(1, 1, 1, 1));
  job.start(0);
  for (int node = 0; node < 2; ++node) REQUIRE(job.runs_attempt(node, 2, 2, 1));
  job.succeeds({0, 1});
  CHECK(std::filesystem::is_empty(shared.path()));
}

TEST_CASE("16.1: of two nodes whose cable is pulled one goes on, and the other says which") {
  SKIP_WITHOUT_HOSTS();
  const TemporaryFolder shared;
  ElasticJob job(2, {"--tie-breaker", shared.path() + "/tie"},
                 ",join_timeout=" + patience_seconds(8));
  job.hosts().set_plugged(0, false);
  int on = -1;
  for (int look = 0; look < 100 && on < 0; ++look) {
    const int node = look % 2;
    const std::string alone = "attempt 1 of 1 at " + NetworkHosts::address(node);
    if (job.node(node).wait_for_output(alone, 300ms)) on = node;
  }
  REQUIRE(on >= 0);
  const auto ended = job.node(1 - on).wait(120s);
  INFO(ended.output);
  CHECK(ended.status == 72);
  CHECK(contains(ended.output, "at " + NetworkHosts::address(on) + " has claimed the job"));
  CHECK_FALSE(contains(ended.output, "attempt 1 of"));
  job.succeeds({on});
}

TEST_CASE("16.1: a node 0 that was frozen finds its job claimed by the other node, and joins it") {
  SKIP_WITHOUT_HOSTS();
  const TemporaryFolder shared;
  ElasticJob job(2, {"--tie-breaker", shared.path() + "/tie"});
  job.node(0).send_signal(SIGSTOP);
  REQUIRE(job.runs_attempt(1, 1, 1, 1));
  job.node(0).send_signal(SIGCONT);
  // It may join more than once until the connections of before are gone.
  const std::string both = " of 2 at " + NetworkHosts::address(1);
  for (int node = 0; node < 2; ++node) REQUIRE(job.node(node).wait_for_output(both, 60s));
  job.succeeds({0, 1});
}

TEST_CASE("16.1: a node that sees another tie-breaker than node 0 is refused") {
  SKIP_WITHOUT_HOSTS();
  const TemporaryFolder one, other;
  const NetworkHosts hosts(2);
  std::vector<std::unique_ptr<Process>> nodes;
  for (int node = 0; node < 2; ++node) {
    const std::string tie = (node == 0 ? one : other).path() + "/tie";
    nodes.push_back(std::make_unique<Process>(hosts.on(
        node,
        launch({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                NetworkHosts::address(0) + ":29500", "--tie-breaker", tie, "--max-restarts", "1"}) +
            shell("sleep 600"))));
  }
  const auto refused = nodes[1]->wait(60s);
  INFO(refused.output);
  CHECK(refused.status == 73);
  CHECK(contains(refused.output, "give a path on a file system that all nodes share"));
  nodes[0]->send_signal(SIGTERM);
  CHECK(nodes[0]->wait(60s).status == 75);
}

TEST_CASE(
    "16.1: without a tie-breaker the other of two nodes ends, and says what would have helped") {
  SKIP_WITHOUT_HOSTS();
  ElasticJob job(2);
  job.node(0).send_signal(SIGKILL);
  const auto ended = job.node(1).wait(60s);
  INFO(ended.output);
  CHECK(ended.status == 72);
  CHECK(contains(ended.output, "--tie-breaker"));
}
