// Slow ranks of a job of several nodes: named once, where the job is coordinated.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;
using nlohmann::json;

namespace {

std::vector<json> told_of_stragglers(const std::string& event_log) {
  std::vector<json> told;
  std::ifstream file(event_log);
  for (std::string line; std::getline(file, line);) {
    const json event = json::parse(line);
    if (event["event"] == "straggler") told.push_back(event);
  }
  return told;
}

int times_in(const std::string& output, const std::string& text) {
  int times = 0;
  for (auto at = output.find(text); at != output.npos; at = output.find(text, at + 1)) ++times;
  return times;
}

// Two nodes, whose workers say how long their steps are.
struct PacedNodes {
  // `slow`: the ranks of node 1 that SIGUSR1 makes slow.
  PacedNodes(const std::string& workers, const std::vector<std::string>& slow)
      : host(command(0, workers, slow)), other(command(1, workers, slow), with_driver()) {}

  std::vector<std::string> command(int node, const std::string& workers,
                                   const std::vector<std::string>& slow) const {
    return launch_node(node, port,
                       {"--nproc-per-node", workers, "--event-log", log(node), "--stall-timeout",
                        patience_seconds(1), "--forward-signals", "USR1,USR2"},
                       std::vector<std::string>{DDPRUN_PACED_WORKER} + slow);
  }
  // Node 1 has a driver of GPUs, which refuses until it has something to tell.
  std::map<std::string, std::string> with_driver() const {
    return {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML_FOLDER}, {"FAKE_NVML", folder / "driver"}};
  }
  void tell_of_gpu(const std::string& line) const {
    std::ofstream(folder / "driver.new") << line << '\n';
    std::filesystem::rename(folder / "driver.new", folder / "driver");
  }
  // All of them train, and those of `slow` are slow from now on.
  void make_slow(int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      Process& node = rank < world_size / 2 ? host : other;
      REQUIRE(node.wait_for_output("rank " + std::to_string(rank) + " trains", 60s));
    }
    other.send_signal(SIGUSR1);
  }
  // Lets them end, and returns what the host and the other one said.
  std::pair<std::string, std::string> end() {
    for (Process* node : {&host, &other}) node->send_signal(SIGUSR2);
    const auto of_host = host.wait(60s), of_other = other.wait(60s);
    INFO(of_host.output << of_other.output);
    CHECK(of_host.status == 0);
    CHECK(of_other.status == 0);
    return {of_host.output, of_other.output};
  }
  // Of two ranks: the slow one is told of, and that it keeps up again. As end().
  std::pair<std::string, std::string> be_slow_for_a_while() {
    make_slow(2);
    REQUIRE(host.wait_for_output(" is slow, by ", 120s));
    other.send_signal(SIGUSR1);
    REQUIRE(host.wait_for_output(" keeps up again: ", 120s));
    return end();
  }
  std::string log(int node) const { return folder / ("events" + std::to_string(node)); }

  TemporaryFolder folder;
  std::uint16_t port = free_port();
  Process host, other;
};

}  // namespace

TEST_CASE("16.3: of nodes with one worker each the coordinator's names the slow one, once") {
  PacedNodes job("1", {"1"});
  const auto [host, other] = job.be_slow_for_a_while();

  INFO(host << other);
  CHECK(times_in(host, "rank 1 on ") == 2);
  CHECK(times_in(host, " is slow, by ") == 1);
  CHECK(times_in(host, "of each step before it waits for others, who need 50.0 ms") == 2);
  CHECK_FALSE(contains(other, " is slow"));
  CHECK_FALSE(contains(other, " keeps up"));
  const auto told = told_of_stragglers(job.log(0));
  REQUIRE(told.size() == 2);
  CHECK(told[0]["ranks"] == std::vector{1});
  CHECK(told[0]["of_host"] == told[0]["host"]);
  CHECK(told[0]["over"] == false);
  CHECK(told[0]["own_us"] > told[0]["others_us"]);
  CHECK(told[1]["ranks"] == std::vector{1});
  CHECK(told[1]["over"] == true);
  CHECK(told_of_stragglers(job.log(1)).empty());
}

TEST_CASE("16.3: a slow rank whose GPU is held back is told with the reason") {
  PacedNodes job("1", {"1"});
  REQUIRE(job.other.wait_for_output("rank 1 trains, pid ", 60s));
  const int pid = number_after(job.other.output(), "rank 1 trains, pid ");
  job.tell_of_gpu("GPU-aa 99 1000 2000 " + std::to_string(pid) +
                  ":500 reasons=48 clock=780 clock_max=1980 celsius=92");
  const auto [host, other] = job.be_slow_for_a_while();

  INFO(host << other);
  const std::string reason = "; its GPU 0 is slowed down by heat: 780 of 1980 MHz, 92 C";
  CHECK(times_in(host, reason) == 1);
  const auto told = told_of_stragglers(job.log(0));
  REQUIRE(told.size() == 2);
  CHECK(contains(told[0]["why"].get<std::string>(), reason));
  CHECK_FALSE(contains(told[1]["why"].get<std::string>(), "GPU"));
}

TEST_CASE("16.3: a node whose workers are all slow is named once, and not each of them") {
  PacedNodes job("2", {"2", "3"});
  job.make_slow(4);
  REQUIRE(job.host.wait_for_output("all 2 ranks of node 1 on ", 120s));
  const auto [host, other] = job.end();

  INFO(host << other);
  CHECK(times_in(host, " slow, ") == 1);
  const auto told = told_of_stragglers(job.log(0));
  REQUIRE(told.size() == 1);
  CHECK(told[0]["ranks"] == std::vector{2, 3});
}
