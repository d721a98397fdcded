// An elastic job that grows and loses a node again, with `train --shards`: its weights are those of
// one worker that was left alone.
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::testing;

namespace {

constexpr auto shards_limit = 120s;

std::vector<std::string> train_in_shards(const TemporaryFolder& folder, const std::string& name,
                                         const std::string& steps) {
  return small_training({"--shards", "2", "--print-freq", "1", "--checkpoint-every", "5", "--steps",
                         steps, "--checkpoint-dir", folder / name, "--metrics",
                         folder / (name + ".jsonl")});
}

// Of the run that began last: how many workers it has, once it has done a step.
int workers_at_work(const std::string& metrics) {
  int workers = 0, working = 0;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded()) break;  // The end of it is still being written.
    if (event.at("event") == "start") workers = event.at("world_size");
    working = event.at("event") == "train" ? workers : event.at("event") == "start" ? 0 : working;
  }
  return working;
}

bool wait_for_workers(Process& process, int workers, const std::string& metrics) {
  return process.wait_until([&] { return workers_at_work(metrics) == workers; }, shards_limit);
}

}  // namespace

TEST_CASE("16.3: an elastic job that grows and shrinks trains the bits of one worker") {
  TemporaryFolder folder;
  const std::string metrics = folder / "elastic.jsonl";
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto node = launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                            endpoint, "--rdzv-id", "shards", "--rdzv-conf", "last_call_timeout=0",
                            "--nproc-per-node", "1", "--max-restarts", "3"}) +
                    train_in_shards(folder, "elastic", "1000000");
  Process first(node, one_thread);
  REQUIRE(wait_for_workers(first, 1, metrics));
  auto second = std::make_unique<Process>(node, one_thread);
  REQUIRE(wait_for_workers(first, 2, metrics));
  second->send_signal(SIGKILL);
  second.reset();
  REQUIRE(wait_for_workers(first, 1, metrics));
  first.send_signal(SIGTERM);
  const auto stopped = first.wait(shards_limit);
  INFO(stopped.output);
  REQUIRE(stopped.status == 75);
  const std::size_t told = stopped.output.rfind("SIGTERM: saved step ");  // Growing stops, too.
  REQUIRE(told != std::string::npos);
  const int steps = number_after(stopped.output.substr(told), "SIGTERM: saved step ");
  REQUIRE(steps > 0);

  const auto alone =
      run(train_in_shards(folder, "alone", std::to_string(steps)), shards_limit, one_thread);
  INFO(alone.output);
  REQUIRE(alone.status == 0);
  const bool same_weights = newest_tensors(folder / "elastic") == newest_tensors(folder / "alone");
  CHECK(same_weights);
}
