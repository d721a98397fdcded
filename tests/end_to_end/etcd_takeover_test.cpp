// Elastic jobs in which an etcd says who goes on: any part of the nodes may, and one does.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/arbiter/etcd_client.h"
#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/elastic_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/network_hosts.h"
#include "tests/testing/patience.h"

using namespace ddprun::testing;

#define SKIP_WITHOUT_ETCD() \
  SKIP_WITHOUT_HOSTS();     \
  if (const auto none = EtcdServer::unavailable(); !none.empty()) DDPRUN_SKIP(none)

namespace {

// None of the nodes that are cut off waits for ever to be let in again.
ElasticJob::WithEtcd with_short_join() { return {",join_timeout=" + patience_seconds(8)}; }

// These nodes run no other attempt than the first, and end.
void gave_up(ElasticJob& job, const std::vector<int>& nodes, const std::string& why) {
  for (const int index : nodes) {
    const auto ended = job.node(index).wait(180s);
    INFO("node " << index << ": " << ended.output);
    CHECK(ended.status == 72);
    CHECK(contains(ended.output, why));
    CHECK_FALSE(contains(ended.output, "attempt 1 of"));
  }
}

}  // namespace

TEST_CASE("16.1: with etcd one of three nodes goes on when the two others are killed at once") {
  SKIP_WITHOUT_ETCD();
  ElasticJob job(3, ElasticJob::WithEtcd{});
  int left = 2;
  SECTION("node 0 and another") { left = 2; }
  SECTION("all but node 0") { left = 0; }
  for (int node = 0; node < 3; ++node) {
    if (node != left) job.node(node).send_signal(SIGKILL);
  }
  REQUIRE(job.runs_attempt(left, 1, 1, left));
  job.succeeds({left});
}

TEST_CASE("16.1: of two parts of a cut network exactly one goes on with etcd") {
  SKIP_WITHOUT_ETCD();
  ElasticJob job(3, with_short_join());
  job.hosts().cut_link(0, 1);
  job.hosts().cut_link(0, 2);
  int on = -1;
  for (int look = 0; look < 200 && on < 0; ++look) {
    const int node = look % 2;
    const std::string goes_on = node == 0 ? "attempt 1 of 1 at " : "attempt 1 of 2 at ";
    if (job.node(node).wait_for_output(goes_on + NetworkHosts::address(node), 300ms)) on = node;
  }
  REQUIRE(on >= 0);
  const std::vector<int> first = {0}, second = {1, 2};
  gave_up(job, on == 0 ? second : first,
          "at " + NetworkHosts::address(on) + " has claimed the job");
  job.succeeds(on == 0 ? first : second);
}

TEST_CASE("16.1: the part of a cut network that reaches etcd goes on, a minority or not") {
  SKIP_WITHOUT_ETCD();
  constexpr int etcd = 3;
  ElasticJob job(3, with_short_join());
  SECTION("one of three") {
    for (const int lost : {1, 2}) {
      job.hosts().cut_link(0, lost);
      job.hosts().cut_link(lost, etcd);
    }
    REQUIRE(job.runs_attempt(0, 1, 1, 0));
    gave_up(job, {1, 2}, "--tie-breaker http://");
    job.succeeds({0});
  }
  SECTION("two of three") {
    for (const int lost : {1, 2, etcd}) job.hosts().cut_link(0, lost);
    REQUIRE(job.goes_on_at({1, 2}, 1) > 0);
    gave_up(job, {0}, "--tie-breaker http://");
    job.succeeds({1, 2});
  }
}

TEST_CASE("16.1: an etcd that was away when it was needed is asked again when it is back") {
  SKIP_WITHOUT_ETCD();
  // It bounds how long etcd is waited for.
  ElasticJob job(3, ElasticJob::WithEtcd{",heartbeat_timeout=" + patience_seconds(3)});
  job.etcd().kill();
  for (const int lost : {0, 1}) job.node(lost).send_signal(SIGKILL);
  REQUIRE(job.node(2).wait_for_output("looking for another one", 60s));
  job.etcd().start();
  REQUIRE(job.runs_attempt(2, 1, 1, 2));
  job.succeeds({2});
}

TEST_CASE("16.1: a job whose etcd does not answer does not start, and says why") {
  const auto ended = run(
      launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
              "127.0.0.1:" + std::to_string(free_port()), "--tie-breaker", "http://127.0.0.1:1"}) +
          shell("echo it runs"),
      60s);
  INFO(ended.output);
  CHECK(ended.status != 0);
  CHECK(contains(ended.output, "--tie-breaker http://127.0.0.1:1: http://127.0.0.1:1/v3/kv/txn: "));
  CHECK(contains(ended.output, "is an etcd of version 3.4 or later there"));
  CHECK_FALSE(contains(ended.output, "it runs"));
}

TEST_CASE("16.1: nodes that start at once and know an etcd alone are one job, and leave nothing") {
  if (const auto none = EtcdServer::unavailable(); !none.empty()) DDPRUN_SKIP(none);
  EtcdServer etcd;
  std::vector<std::unique_ptr<Process>> nodes;
  for (int node = 0; node < 3; ++node) {
    nodes.push_back(std::make_unique<Process>(
        launch({"--nnodes", "3", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint",
                etcd.url().substr(std::string("http://").size()), "--rdzv-id", "all"}) +
        shell("echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR")));
  }
  std::string said;
  for (const auto& node : nodes) {
    const auto ended = node->wait(120s);
    INFO(ended.output);
    CHECK(ended.status == 0);
    said += ended.output;
  }
  for (const char* rank : {"0", "1", "2"}) {
    CHECK(contains(said, std::string("rank ") + rank + " of 3 at 127.0.0.1"));
  }
  ddprun::rendezvous::EtcdClient client({.urls = {etcd.url()}}, "etcd", patience(5s));
  const auto left = client.run(ddprun::rendezvous::EtcdTransaction().read_below("/ddprun/"));
  CHECK(left.values.empty());
}

TEST_CASE("16.1: a job that is known from etcd alone goes on without node 0, and takes it back") {
  SKIP_WITHOUT_ETCD();
  ElasticJob job(3, ElasticJob::WithEtcd{.conf = "", .meets = true});
  job.node(0).send_signal(SIGKILL);
  for (const int node : {1, 2}) REQUIRE(job.runs_attempt(node, 1, 2, 1));
  job.start(0);
  for (const int node : {0, 1, 2}) REQUIRE(job.runs_attempt(node, 2, 3, 1));
  job.succeeds({0, 1, 2});
}

TEST_CASE("16.1: a job that is known from etcd alone runs on while that is away") {
  SKIP_WITHOUT_ETCD();
  ElasticJob job(2, ElasticJob::WithEtcd{.conf = "", .meets = true});
  job.etcd().kill();
  REQUIRE(job.node(0).wait_for_output("new nodes do not find the job as long as this lasts", 60s));
  job.etcd().start();
  // It was found again, and takes over as with any etcd.
  job.node(0).send_signal(SIGKILL);
  REQUIRE(job.runs_attempt(1, 1, 1, 1));
  job.succeeds({1});
}

TEST_CASE(
    "16.1: a coordinator whose lease ran out while it did not reach etcd finds the next one") {
  SKIP_WITHOUT_ETCD();
  constexpr int etcd = 3;
  ElasticJob job(3, ElasticJob::WithEtcd{.conf = "", .meets = true});
  job.node(2).send_signal(SIGKILL);
  for (const int node : {0, 1}) REQUIRE(job.runs_attempt(node, 1, 2, 0));
  job.hosts().cut_link(0, etcd);
  // What the end of the lease does, which is half a minute away.
  const std::string forget =
      "import urllib.request as u; u.urlopen('" + job.etcd().url() +
      "/v3/kv/deleterange', b'{\"key\":\"L2RkcHJ1bi9ub25lL2xlYWRlcg==\"}').read()";
  const auto forgotten = run(job.hosts().on(etcd, {"python3", "-c", forget}), 60s);
  INFO(forgotten.output);
  REQUIRE(forgotten.status == 0);

  // A new node finds nobody there, and begins the job; the one that goes on hears nothing of it.
  job.start(2);
  REQUIRE(job.node(2).wait_for_output("1 of 1 to 3 nodes joined", 60s));
  job.hosts().heal_link(0, etcd);
  REQUIRE(job.node(0).wait_for_output("this node gives way to it", 120s));
  for (const int node : {0, 1, 2}) REQUIRE(job.runs_attempt(node, 2, 3, 2));
  job.succeeds({0, 1, 2});
}

TEST_CASE("16.1: a job that was killed is begun anew once the lease of its coordinator is over") {
  if (const auto none = EtcdServer::unavailable(); !none.empty()) DDPRUN_SKIP(none);
  EtcdServer etcd;
  std::vector<std::unique_ptr<Process>> nodes;
  const auto start_two = [&](const std::string& commands) {
    for (int node = 0; node < 2; ++node) {
      nodes.push_back(std::make_unique<Process>(
          launch({"--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint",
                  etcd.url().substr(std::string("http://").size()), "--rdzv-conf",
                  "heartbeat_timeout=1,keep_alive_interval=0.2"}) +
          shell(commands)));
    }
  };
  start_two("echo it runs; exec sleep 600");
  for (const auto& node : nodes) REQUIRE(node->wait_for_output("it runs", 120s));
  for (const auto& node : nodes) node->send_signal(SIGKILL);
  nodes.clear();
  start_two("echo $WORLD_SIZE nodes again");
  for (const auto& node : nodes) {
    const auto ended = node->wait(180s);
    INFO(ended.output);
    CHECK(ended.status == 0);
    CHECK(contains(ended.output, "2 nodes again"));
  }
}
