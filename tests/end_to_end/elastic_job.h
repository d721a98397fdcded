// An elastic job of one launcher on each of several hosts (tests/testing/network_hosts.h), of which
// 0 hosts the endpoint.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/network_hosts.h"
#include "tests/testing/patience.h"

namespace ddprun::testing {

inline const std::string runs =
    "trap 'exit 0' USR1; "
    "echo \"attempt $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE at $MASTER_ADDR\"; "
    "while :; do sleep 0.02; done";

inline constexpr int max_restarts = 9;

// One launcher on each host, with one worker each; 0 hosts the endpoint.
class ElasticJob {
 public:
  // `spares`: launchers on further hosts, which stand by.
  explicit ElasticJob(int nodes, std::vector<std::string> options = {}, std::string conf = "",
                      int spares = 0)
      : hosts_(nodes + spares),
        options_(std::move(options)),
        conf_(std::move(conf)),
        nodes_max_(nodes),
        nodes_(static_cast<std::size_t>(nodes + spares)) {
    start_all();
    for (int spare = nodes; spare < nodes + spares; ++spare) {
      start(spare);
      REQUIRE(node(spare).wait_for_output("stands by as a spare", 60s));
    }
  }
  // With an etcd that says who goes on, on a host of its own.
  struct WithEtcd {
    std::string conf;
    bool meets = false;  // It is all that the nodes know.
  };
  ElasticJob(int nodes, const WithEtcd& with)
      : hosts_(nodes + 1),
        conf_(with.conf),
        nodes_max_(nodes),
        nodes_(static_cast<std::size_t>(nodes)) {
    etcd_ = std::make_unique<EtcdServer>(NetworkHosts::address(nodes), hosts_.on(nodes, {}));
    options_ = {"--tie-breaker", etcd_->url()};
    if (with.meets) options_ = {};
    if (with.meets) meeting_ = {"etcd", NetworkHosts::address(nodes)};
    start_all();
  }

  void start(int node) {
    const std::string nodes = std::to_string(nodes_max_);
    nodes_[static_cast<std::size_t>(node)] = std::make_unique<Process>(hosts_.on(
        node, launch({"--nnodes", "1:" + nodes, "--rdzv-backend", meeting_.first, "--rdzv-endpoint",
                      meeting_.second, "--max-restarts", std::to_string(max_restarts),
                      "--forward-signals", "USR1", "--rdzv-conf",
                      "heartbeat_timeout=1,keep_alive_interval=0.2" + conf_}) +
                  options_ + shell(runs)));
  }

  Process& node(int index) { return *nodes_[static_cast<std::size_t>(index)]; }
  const NetworkHosts& hosts() const { return hosts_; }
  EtcdServer& etcd() { return *etcd_; }

  // That attempt or a later one: on a busy machine a node may be counted as lost and come back.
  bool runs_attempt(int index, int first_attempt, int world_size, int store_host) {
    if (node(index).wait_until(
            [&] { return is_told(index, first_attempt, world_size, store_host); }))
      return true;
    for (auto& process : nodes_) {
      if (process) UNSCOPED_INFO("a node said:\n" << process->output());
    }
    return false;
  }

  // Where these nodes, which no longer hear the coordinator, go on together under one of them, or
  // -1. That is the lowest where all notice in time; on a busy machine another may be the first who
  // has waited long enough.
  int goes_on_at(const std::vector<int>& nodes, int first_attempt) {
    const auto world_size = static_cast<int>(nodes.size());
    int store_host = -1;
    node(nodes.front()).wait_until([&] {
      for (const int host : nodes) {
        if (is_told(nodes.front(), first_attempt, world_size, host)) store_host = host;
      }
      return store_host >= 0;
    });
    for (const int index : nodes) {
      if (!runs_attempt(index, first_attempt, world_size, std::max(store_host, nodes.front())))
        return -1;
    }
    return store_host;
  }

  // The workers of these nodes end by themselves, and so does the job.
  void succeeds(const std::vector<int>& nodes) {
    for (const int index : nodes) node(index).send_signal(SIGUSR1);
    for (const int index : nodes) {
      const auto ended = node(index).wait(60s);
      INFO("node " << index << ": " << ended.output);
      CHECK(ended.status == 0);
    }
  }

 private:
  bool is_told(int index, int first_attempt, int world_size, int store_host) {
    const std::string which =
        " of " + std::to_string(world_size) + " at " + NetworkHosts::address(store_host);
    for (int attempt = first_attempt; attempt <= max_restarts; ++attempt) {
      if (contains(node(index).output(), "attempt " + std::to_string(attempt) + which)) return true;
    }
    return false;
  }

  void start_all() {
    const int nodes = nodes_max_;
    for (int node = 0; node < nodes; ++node) {
      start(node);
      // In this order, since ranks are given in the order of joining.
      if (node + 1 == nodes) break;
      REQUIRE(nodes_[0]->wait_for_output(
          std::to_string(node + 1) + " of 1 to " + std::to_string(nodes) + " nodes joined", 60s));
    }
    for (int node = 0; node < nodes; ++node) REQUIRE(runs_attempt(node, 0, nodes, 0));
  }

  NetworkHosts hosts_;
  // Backend and endpoint.
  std::pair<std::string, std::string> meeting_{"c10d", NetworkHosts::address(0) + ":29500"};
  std::unique_ptr<EtcdServer> etcd_;
  std::vector<std::string> options_;
  std::string conf_;
  int nodes_max_;
  std::vector<std::unique_ptr<Process>> nodes_;
};

#define SKIP_WITHOUT_HOSTS() \
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why)

}  // namespace ddprun::testing
