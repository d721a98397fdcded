// Recovery in place with real programs: who keeps its process when an attempt ends, whose place is
// filled anew, and what is left behind: nothing.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/endless_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/json_lines.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;

namespace {

const std::vector<std::string> parking_worker = {DDPRUN_PARKING_WORKER};

struct Node {
  explicit Node(const std::vector<std::string>& options,
                const std::vector<std::string>& program = parking_worker)
      : process(launch({"--forward-signals", "USR1", "--event-log", folder / "events"}) + options +
                program) {}

  // The pids in events of this name in this attempt, by rank.
  std::map<int, int> pids(const std::string& name, int attempt,
                          const std::string& flag = "") const {
    std::map<int, int> found;
    for (const auto& event : whole_json_lines(folder / "events")) {
      if (event.at("event") != name || event.at("attempt") != attempt) continue;
      if (!flag.empty() && event.at(flag) != true) continue;
      found[event.at("rank")] = event.at("worker_pid");
    }
    return found;
  }
  int count(const std::string& name) const {
    int count = 0;
    for (const auto& event : whole_json_lines(folder / "events")) {
      count += event.at("event") == name;
    }
    return count;
  }
  bool wait_until(const std::function<bool()>& done) { return process.wait_until(done); }
  static std::string start(int attempt, int rank, int world) {
    return "attempt " + std::to_string(attempt) + " rank " + std::to_string(rank) + " of " +
           std::to_string(world) + " is pid ";
  }
  // All of them run, and have said that they can park.
  std::map<int, int> wait_for_ranks(int attempt, const std::vector<int>& ranks, int world) {
    std::map<int, int> pids;
    for (const int rank : ranks) {
      INFO(process.output());
      REQUIRE(process.wait_for_output(start(attempt, rank, world), 60s));
      REQUIRE(process.wait_for_output("rank " + std::to_string(rank) + " can park", 60s));
      pids[rank] = number_after(process.output(), start(attempt, rank, world));
    }
    return pids;
  }

  TemporaryFolder folder;
  Process process;
};

std::vector<std::string> one_node(int workers, int restarts) {
  return {"--standalone", "--nproc-per-node", std::to_string(workers), "--max-restarts",
          std::to_string(restarts)};
}

std::vector<std::string> elastic_node(int min, std::uint16_t port, int workers, int max = 2,
                                      const std::string& conf = "") {
  return {"--nnodes",         std::to_string(min) + ":" + std::to_string(max),
          "--rdzv-backend",   "c10d",
          "--rdzv-endpoint",  "127.0.0.1:" + std::to_string(port),
          "--rdzv-conf",      "last_call_timeout=1" + conf,
          "--nproc-per-node", std::to_string(workers),
          "--max-restarts",   "3"};
}

// A job of two nodes that has lost one and waits for another: its two workers are parked.
struct WaitingJob {
  WaitingJob() : first(elastic_node(2, port, 2)) {
    // The one that stays hosts the endpoint: two nodes have no majority without it.
    REQUIRE(first.wait_until([&] { return first.count("endpoint_opened") == 1; }));
    auto second = std::make_unique<Node>(elastic_node(2, port, 1));
    // Who of the two is node 0 is open; a node's workers have neighbouring ranks.
    REQUIRE(first.wait_until([&] { return first.pids("worker_started", 0).size() == 2; }));
    for (const auto& [rank, pid] : first.pids("worker_started", 0)) pids.push_back(pid);
    REQUIRE(first.wait_until([&] { return count_of(first.process.output(), " can park") == 2; }));
    second->process.send_signal(SIGKILL);
    REQUIRE(first.wait_until([&] { return first.count("worker_parked") == 2; }));
  }

  std::uint16_t port = free_port();
  Node first;
  std::vector<int> pids;
};

// Two nodes of an elastic job with two workers each, which hear nothing of each other for a second
// where one launcher is halted. `first` hosts the endpoint.
struct SilentJob {
  explicit SilentJob(const std::string& conf = "") : conf_(conf) {
    REQUIRE(first.wait_until([&] { return first.count("endpoint_opened") == 1; }));
    second = std::make_unique<Node>(options());
    for (Node* const node : {&first, second.get()}) {
      INFO(node->process.output());
      REQUIRE(node->wait_until([&] { return node->pids("worker_started", 0).size() == 2; }));
      REQUIRE(node->wait_until([&] { return count_of(node->process.output(), " can park") == 2; }));
    }
    for (const auto& [rank, pid] : second->pids("worker_started", 0)) pids.push_back(pid);
  }
  std::vector<std::string> options() const {
    return elastic_node(1, port, 2, 2, ",heartbeat_timeout=1,keep_alive_interval=0.2" + conf_);
  }
  // The second's that had a rank in a later attempt than the first one.
  std::vector<int> kept() const {
    std::vector<int> result;
    for (const auto& event : whole_json_lines(second->folder / "events")) {
      if (event.at("event") == "worker_started" && event.at("was_kept") == true) {
        result.push_back(event.at("worker_pid"));
      }
    }
    return result;
  }
  // It hears nothing of the first one any more.
  void cut_off() {
    first.process.send_signal(SIGSTOP);
    INFO(second->process.output());
    REQUIRE(second->wait_until([&] { return second->count("worker_parked") == 2; }));
  }

  std::string conf_;
  std::uint16_t port = free_port();
  Node first{options()};
  std::unique_ptr<Node> second;
  std::vector<int> pids;  // Of the second.
};

}  // namespace

TEST_CASE("16.3: a node that was silent for a while comes back with its processes", "[in_place]") {
  SilentJob job;
  job.second->process.send_signal(SIGSTOP);
  INFO(job.first.process.output());
  REQUIRE(job.first.wait_until([&] { return job.first.pids("worker_started", 1).size() == 2; }));
  job.second->process.send_signal(SIGCONT);

  const bool both_kept = job.second->wait_until([&] { return job.kept().size() == 2; });
  INFO(job.second->process.output());
  REQUIRE(both_kept);
  CHECK(job.kept() == job.pids);
  CHECK(contains(job.second->process.output(), "2 workers leave the attempt"));
  finish({&job.first.process, &job.second->process});
}

TEST_CASE("16.3: parked workers of a node that finds its job no more are stopped", "[in_place]") {
  SilentJob job(",join_timeout=3");
  job.cut_off();

  const auto ended = job.second->process.wait(60s);
  INFO(ended.output);
  CHECK(ended.status == 72);
  for (const int pid : job.pids) CHECK(::kill(pid, 0) != 0);
  job.first.process.send_signal(SIGCONT);
  REQUIRE(job.first.wait_until([&] { return job.first.pids("worker_started", 1).size() == 2; }));
  job.first.process.send_signal(SIGTERM);
  CHECK(job.first.process.wait(60s).status == 75);
}

TEST_CASE("16.3: no parked worker brings its state to another job of the same name", "[in_place]") {
  SilentJob job;
  job.cut_off();
  job.first.process.send_signal(SIGKILL);
  job.first.process.wait(60s);
  Node other(job.options());

  INFO(other.process.output());
  INFO(job.second->process.output());
  REQUIRE(job.second->wait_until([&] { return job.second->count("worker_started") >= 4; }));
  CHECK(job.kept().empty());
  for (const int pid : job.pids) CHECK(::kill(pid, 0) != 0);
  REQUIRE(job.second->wait_until(
      [&] { return count_of(job.second->process.output(), " can park") >= 4; }));
  REQUIRE(other.wait_until([&] { return count_of(other.process.output(), " can park") >= 2; }));
  finish({&other.process, &job.second->process});
}

TEST_CASE("16.3: a worker that leaves an attempt of which nothing is lost ends it after a while",
          "[in_place]") {
  Node node(one_node(2, 1), parking_worker + std::vector<std::string>{"leaves", "1"});
  const auto first = node.wait_for_ranks(0, {0, 1}, 2);
  REQUIRE(node.process.wait_for_output(Node::start(1, 0, 2), 60s));
  const auto second = node.wait_for_ranks(1, {0, 1}, 2);
  CHECK(second.at(0) == first.at(0));
  CHECK(second.at(1) != first.at(1));
  CHECK(contains(node.process.output(),
                 "rank 1 left the attempt, of which nothing else was lost within 5 s"));
  node.process.send_signal(SIGUSR1);
  CHECK(node.process.wait(60s).status == 0);
}

TEST_CASE("16.3: survivors keep their processes when a worker is killed, and when another one is",
          "[in_place]") {
  TemporaryFolder logs;
  Node node(one_node(3, 2) + std::vector<std::string>{"--log-dir", logs.path(), "--tee", "0:3,1:1",
                                                      "--redirects", "2:1"},
            {DDPRUN_PARKING_WORKER});
  // Local rank 2 writes to its file alone.
  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 0).size() == 3; }));
  auto first = node.pids("worker_started", 0);
  const std::string run = std::filesystem::directory_iterator(logs.path())->path();
  const auto file = [&](int attempt, int rank) {
    return content_of(run + "/attempt_" + std::to_string(attempt) + "/" + std::to_string(rank) +
                      "/stdout.log");
  };
  const auto can_park = [&](int attempt, int rank) {
    return contains(file(attempt, rank), "is pid");
  };
  REQUIRE(node.wait_until([&] {
    return contains(file(0, 0), "can park") && contains(file(0, 1), "can park") &&
           contains(file(0, 2), "can park");
  }));

  ::kill(first[1], SIGKILL);

  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 1).size() == 3; }));
  auto second = node.pids("worker_started", 1);
  INFO(node.process.output());
  CHECK(second[0] == first[0]);
  CHECK(second[1] != first[1]);
  CHECK(second[2] == first[2]);
  CHECK(node.pids("worker_started", 1, "was_kept").size() == 2);
  CHECK(node.pids("worker_parked", 0) == std::map<int, int>{{0, first[0]}, {2, first[2]}});
  CHECK(node.process.wait_for_output("in the process of the attempt before: rank 0 (pid ", 60s));
  // What they say of the new attempt stands in its files.
  REQUIRE(node.wait_until([&] { return can_park(1, 0) && can_park(1, 1) && can_park(1, 2); }));
  CHECK(contains(file(1, 2), "attempt 1 rank 2 of 3 is pid " + std::to_string(first[2])));
  CHECK_FALSE(contains(file(0, 2), "attempt 1"));
  REQUIRE(node.wait_until([&] { return contains(file(1, 1), "can park"); }));

  ::kill(second[0], SIGKILL);

  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 2).size() == 3; }));
  auto third = node.pids("worker_started", 2);
  CHECK(third[0] != second[0]);
  CHECK(third[1] == second[1]);
  CHECK(third[2] == first[2]);
  REQUIRE(node.wait_until([&] { return can_park(2, 0) && can_park(2, 1) && can_park(2, 2); }));
  finish({&node.process});
  CHECK(wait_until_gone({third[0], third[1], third[2]}, 20s));
}

TEST_CASE("16.3: a spare takes the place of the dead, and of nobody else", "[in_place]") {
  Node node(one_node(2, 2) + std::vector<std::string>{"--spares", "2"});
  auto first = node.wait_for_ranks(0, {0, 1}, 2);
  REQUIRE(node.wait_until([&] { return node.count("spare_ready") == 2; }));

  ::kill(first[1], SIGKILL);

  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 1).size() == 2; }));
  auto second = node.pids("worker_started", 1);
  CHECK(second[0] == first[0]);
  CHECK(node.pids("worker_started", 1, "was_spare") == std::map<int, int>{{1, second[1]}});
  // Who was a spare can park, too.
  REQUIRE(node.process.wait_for_output(Node::start(1, 0, 2), 60s));
  REQUIRE(node.process.wait_for_output(Node::start(1, 1, 2), 60s));
  REQUIRE(node.wait_until([&] {
    return contains(node.process.output().substr(node.process.output().find(Node::start(1, 1, 2))),
                    "rank 1 can park");
  }));

  ::kill(second[0], SIGKILL);

  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 2).size() == 2; }));
  CHECK(node.pids("worker_started", 2)[1] == second[1]);
  REQUIRE(node.process.wait_for_output(Node::start(2, 0, 2), 60s));
  finish({&node.process});
}

TEST_CASE("16.3: a node of MIN:MAX goes on with those that live until the others are replaced",
          "[in_place]") {
  Node node({"--standalone", "--nproc-per-node", "2:3", "--max-restarts", "2"});
  auto first = node.wait_for_ranks(0, {0, 1, 2}, 3);

  ::kill(first[1], SIGKILL);

  REQUIRE(node.process.wait_for_output(Node::start(1, 0, 2), 60s));
  REQUIRE(node.process.wait_for_output(Node::start(1, 1, 2), 60s));
  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 1).size() == 2; }));
  auto second = node.pids("worker_started", 1);
  CHECK(second == std::map<int, int>{{0, first[0]}, {1, first[2]}});
  CHECK(node.pids("worker_started", 1, "was_kept") == second);
  // The replacement warms up beside them.
  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 2).size() == 3; }));
  auto third = node.pids("worker_started", 2);
  CHECK(third[0] == first[0]);
  CHECK(third[2] == first[2]);
  CHECK(node.pids("worker_started", 2, "was_spare") == std::map<int, int>{{1, third[1]}});
  INFO(node.process.output());
  for (const int rank : {0, 1, 2}) {
    REQUIRE(node.process.wait_for_output(Node::start(2, rank, 3), 60s));
  }
  // Below MIN all places are filled at once, cold. This is the second restart: the growth was none.
  REQUIRE(node.wait_until([&] {
    const std::string& text = node.process.output();
    return contains(text.substr(text.find(Node::start(2, 1, 3))), "rank 1 can park");
  }));
  ::kill(third[2], SIGSTOP);  // It cannot park between the two.
  ::kill(third[1], SIGKILL);
  ::kill(third[2], SIGKILL);
  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 3).size() == 3; }));
  CHECK(node.pids("worker_started", 3)[0] == first[0]);
  CHECK(node.pids("worker_started", 3, "was_kept").size() == 1);
  for (const int rank : {0, 1, 2}) {
    REQUIRE(node.process.wait_for_output(Node::start(3, rank, 3), 60s));
  }
  finish({&node.process});
}

TEST_CASE("16.3: the other nodes' workers move up for those that a node goes on without",
          "[in_place]") {
  const std::string port = std::to_string(free_port());
  const auto node = [&](const std::string& rank) {
    return std::vector<std::string>{"--nnodes",       "2",         "--node-rank",      rank,
                                    "--master-addr",  "127.0.0.1", "--master-port",    port,
                                    "--max-restarts", "1",         "--nproc-per-node", "1:2"};
  };
  Node first(node("0")), second(node("1"));
  auto of_first = first.wait_for_ranks(0, {0, 1}, 4);
  auto of_second = second.wait_for_ranks(0, {2, 3}, 4);

  ::kill(of_first[0], SIGKILL);

  REQUIRE(first.wait_until([&] { return first.pids("worker_started", 2).size() == 2; }));
  REQUIRE(second.wait_until([&] { return second.pids("worker_started", 2).size() == 2; }));
  INFO(first.process.output() << second.process.output());
  CHECK(first.pids("worker_started", 1) == std::map<int, int>{{0, of_first[1]}});
  CHECK(second.pids("worker_started", 1) ==
        std::map<int, int>{{1, of_second[2]}, {2, of_second[3]}});
  CHECK(first.pids("worker_started", 2, "was_kept") == std::map<int, int>{{1, of_first[1]}});
  CHECK(second.pids("worker_started", 2, "was_kept") == of_second);
  REQUIRE(first.process.wait_for_output(Node::start(1, 0, 3), 60s));
  REQUIRE(second.process.wait_for_output(Node::start(1, 2, 3), 60s));
  for (const int rank : {0, 1}) {
    REQUIRE(first.process.wait_for_output(Node::start(2, rank, 4), 60s));
    REQUIRE(second.process.wait_for_output(Node::start(2, rank + 2, 4), 60s));
  }
  finish({&first.process, &second.process});
}

TEST_CASE("16.3: the replacement that never asks for a rank is started cold in the end",
          "[in_place]") {
  // As a spare it ends well at once.
  Node node({"--standalone", "--nproc-per-node", "1:2", "--max-restarts", "1"},
            {"sh", "-c", "test \"$RANK\" = spare || exec " DDPRUN_PARKING_WORKER});
  auto first = node.wait_for_ranks(0, {0, 1}, 2);

  ::kill(first[1], SIGKILL);

  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 2).size() == 2; }));
  INFO(node.process.output());
  CHECK(node.pids("worker_started", 1) == std::map<int, int>{{0, first[0]}});
  CHECK(node.pids("worker_started", 2, "was_kept") == std::map<int, int>{{0, first[0]}});
  CHECK(node.pids("worker_started", 2, "was_spare").empty());
  for (const int rank : {0, 1}) {
    REQUIRE(node.process.wait_for_output(Node::start(2, rank, 2), 60s));
  }
  finish({&node.process});
}

TEST_CASE("16.3: the workers of the nodes that are left go on in a smaller world", "[in_place]") {
  const std::uint16_t port = free_port();
  Node first(elastic_node(1, port, 2));
  REQUIRE(first.wait_until([&] { return first.pids("worker_started", 0).size() == 2; }));
  Node second(elastic_node(1, port, 1));
  // The second one enlarges the first one's attempt, or both begin together.
  REQUIRE(first.process.wait_for_output(" of 3 is pid ", 60s));
  REQUIRE(second.process.wait_for_output("can park", 60s));
  const int attempt =
      first.pids("worker_started", 0).size() == 2 && contains(first.process.output(), "attempt 1 ")
          ? 1
          : 0;
  REQUIRE(first.wait_until([&] { return first.pids("worker_started", attempt).size() == 2; }));
  std::vector<int> before, after;
  for (const auto& [rank, pid] : first.pids("worker_started", attempt)) before.push_back(pid);
  // One of another node may be the only one that has got so far.
  REQUIRE(first.wait_until([&] {
    const std::string& text = first.process.output();
    for (const auto& [rank, pid] : first.pids("worker_started", attempt)) {
      if (!contains(text, Node::start(attempt, rank, 3))) return false;
    }
    const std::string said = " can park";  // Once by each process.
    return text.find(said) != text.rfind(said);
  }));

  second.process.send_signal(SIGKILL);

  INFO(first.process.output());
  const auto next = [&] { return first.pids("worker_started", attempt + 1, "was_kept"); };
  REQUIRE(first.wait_until([&] { return next().size() == 2; }));
  for (const auto& [rank, pid] : next()) after.push_back(pid);
  CHECK(after == before);
  REQUIRE(first.process.wait_for_output(Node::start(attempt + 1, 0, 2), 60s));
  REQUIRE(first.process.wait_for_output(Node::start(attempt + 1, 1, 2), 60s));
  finish({&first.process});
}

TEST_CASE("16.3: the workers of the other nodes go on when node 0 is lost", "[in_place]") {
  const std::uint16_t port = free_port();
  Node host(elastic_node(2, port, 1, 3));
  REQUIRE(host.wait_until([&] { return host.count("endpoint_opened") == 1; }));
  Node second(elastic_node(2, port, 1, 3)), third(elastic_node(2, port, 1, 3));
  for (Node* node : {&host, &second, &third}) {
    REQUIRE(node->process.wait_for_output(" of 3 is pid ", 60s));
    REQUIRE(node->wait_until([&] {
      const std::string& text = node->process.output();
      return contains(text.substr(text.find(" of 3 is pid ")), " can park");
    }));
  }
  // The third one may have come after the last call, and enlarged the attempt of the others.
  const int attempt = contains(second.process.output(), "attempt 1 rank") ? 1 : 0;

  host.process.send_signal(SIGKILL);

  for (Node* node : {&second, &third}) {
    INFO(node->process.output());
    const auto kept = [&] { return node->pids("worker_started", attempt + 1, "was_kept"); };
    REQUIRE(node->wait_until([&] { return kept().size() == 1; }));
    CHECK(kept().begin()->second == node->pids("worker_started", attempt).begin()->second);
    const std::string next = "attempt " + std::to_string(attempt + 1) + " rank ";
    REQUIRE(node->process.wait_for_output(next, 60s));
  }
  finish({&second.process, &third.process});
}

TEST_CASE(
    "16.3: the place of a worker that dies while it is parked is filled anew, and nobody is "
    "blamed",
    "[in_place]") {
  WaitingJob job;
  ::kill(job.pids[0], SIGKILL);
  REQUIRE(job.first.process.wait_for_output("ended while it was parked", 60s));

  Node third(elastic_node(2, job.port, 1));

  REQUIRE(job.first.wait_until([&] { return job.first.pids("worker_started", 1).size() == 2; }));
  std::vector<int> after;
  for (const auto& [rank, pid] : job.first.pids("worker_started", 1)) after.push_back(pid);
  INFO(job.first.process.output());
  CHECK(after[0] != job.pids[0]);
  CHECK(after[1] == job.pids[1]);
  CHECK(job.first.pids("worker_started", 1, "was_kept").size() == 1);
  REQUIRE(job.first.wait_until(
      [&] { return count_of(job.first.process.output(), "attempt 1 rank") == 2; }));
  REQUIRE(third.process.wait_for_output("attempt 1 rank", 60s));
  CHECK_FALSE(contains(job.first.process.output(), "was killed by SIGKILL"));
  finish({&job.first.process, &third.process});
}

TEST_CASE("16.3: a launcher that ends while workers are parked leaves none, however it ends",
          "[in_place]") {
  for (const auto& [signal, status] : {std::pair{SIGTERM, 75}, std::pair{SIGKILL, 137}}) {
    WaitingJob job;

    job.first.process.send_signal(signal);

    const auto ended = job.first.process.wait(60s);
    INFO(ended.output);
    CHECK(ended.status == status);
    CHECK(wait_until_gone(job.pids, 20s));
  }
}

TEST_CASE("16.3: one that says that it can park, and does not, is asked, and its place filled anew",
          "[in_place]") {
  Node node(one_node(3, 1) + std::vector<std::string>{"--shutdown-timeout", "1"},
            parking_worker + std::vector<std::string>{"never", "1"});
  auto first = node.wait_for_ranks(0, {0, 1, 2}, 3);

  ::kill(first[0], SIGKILL);

  REQUIRE(node.process.wait_for_output(
      "(pid " + std::to_string(first[1]) + ") said that it can park, and has not within 1 s", 60s));
  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 1).size() == 3; }));
  CHECK(node.pids("worker_started", 1)[1] != first[1]);
  CHECK(node.pids("worker_started", 1)[2] == first[2]);
  for (const int rank : {0, 1, 2}) {
    REQUIRE(node.process.wait_for_output(Node::start(1, rank, 3), 60s));
  }
  finish({&node.process});
}

TEST_CASE("16.3: nobody parks when no attempt follows", "[in_place]") {
  Node node(one_node(2, 1));
  auto first = node.wait_for_ranks(0, {0, 1}, 2);
  ::kill(first[0], SIGKILL);
  REQUIRE(node.wait_until([&] { return node.pids("worker_started", 1).size() == 2; }));
  auto second = node.pids("worker_started", 1);
  REQUIRE(node.process.wait_for_output(Node::start(1, 0, 2), 60s));

  ::kill(second[0], SIGKILL);

  const auto ended = node.process.wait(60s);
  INFO(ended.output);
  CHECK(ended.status == 137);
  CHECK(node.count("worker_parked") == 1);
  CHECK(wait_until_gone({second[0], second[1]}, 20s));
}

TEST_CASE("16.3: workers of a job without another attempt have no channel", "[in_place]") {
  Node node(one_node(1, 0));
  REQUIRE(node.process.wait_for_output("no channel", 60s));
  finish({&node.process});
}
