// `train` under ddprun: it trains, survives a killed worker, and refuses bad input.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 120s;
constexpr int refusals = 5;  // Of a checkpoint; it was a race that half of the runs lost.

std::vector<std::string> train(const std::vector<std::string>& more) {
  return small_training(std::vector<std::string>{"--print-freq", "1"} + more);
}

std::vector<nlohmann::json> lines_of(const std::string& metrics) {
  std::vector<nlohmann::json> result;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) result.push_back(nlohmann::json::parse(line));
  return result;
}

// What the worker with this local rank left in the first attempt, if anything.
std::optional<std::filesystem::path> error_file_in(const std::string& logs, int local_rank) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(logs)) {
    const std::filesystem::path& path = entry.path();
    if (path.filename() == "error.json" &&
        path.parent_path().filename() == std::to_string(local_rank)) {
      return path;
    }
  }
  return std::nullopt;
}

// One of two workers as somebody would start it by hand.
std::map<std::string, std::string> by_hand(int rank, std::uint16_t port) {
  return {{"OMP_NUM_THREADS", "1"},
          {"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

}  // namespace

TEST_CASE("two workers train, and one node of two ends with the same weights as two nodes") {
  TemporaryFolder folder;
  const auto worker = [&](const std::string& name) {
    return train({"--steps", "20", "--checkpoint-dir", folder / name, "--metrics",
                  folder / (name + ".jsonl")});
  };
  const auto one_node =
      run(launch({"--standalone", "--nproc-per-node", "2"}) + worker("one"), limit);
  INFO(one_node.output);
  REQUIRE(one_node.status == 0);

  const std::uint16_t port = free_port();
  Process host(launch_node(0, port, {}, worker("two")), one_thread);
  Process other(launch_node(1, port, {}, worker("two")), one_thread);
  const auto host_result = host.wait(limit);
  INFO(host_result.output);
  REQUIRE(host_result.status == 0);
  REQUIRE(other.wait(limit).status == 0);

  const auto steps = lines_of(folder / "one.jsonl");
  CHECK(steps.front().at("world_size") == 2);
  CHECK(steps.back().at("step") == 20);
  const bool same_weights = newest_tensors(folder / "one") == newest_tensors(folder / "two");
  CHECK(same_weights);
}

TEST_CASE("two workers started by hand meet in the store of rank 0, and train the same weights") {
  TemporaryFolder folder;
  const auto worker = [&](const std::string& name) {
    return train({"--steps", "6", "--checkpoint-dir", folder / name});
  };
  const std::uint16_t port = free_port();
  Process second(worker("hand"), by_hand(1, port));  // First, so that it has to wait.
  Process first(worker("hand"), by_hand(0, port));
  const auto first_result = first.wait(limit), second_result = second.wait(limit);
  INFO(first_result.output << second_result.output);
  REQUIRE(first_result.status == 0);
  REQUIRE(second_result.status == 0);

  const auto launched =
      run(launch({"--standalone", "--nproc-per-node", "2"}) + worker("launched"), limit);
  INFO(launched.output);
  REQUIRE(launched.status == 0);
  const bool same_weights = newest_tensors(folder / "hand") == newest_tensors(folder / "launched");
  CHECK(same_weights);
}

TEST_CASE("a job whose worker was killed ends with the weights of one that was left alone") {
  TemporaryFolder folder;
  const auto job = [&](const std::string& name) {
    return launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) +
           train({"--steps", "64", "--checkpoint-every", "5", "--checkpoint-dir", folder / name,
                  "--metrics", folder / (name + ".jsonl")});
  };
  const auto undisturbed = run(job("undisturbed"), limit);
  INFO(undisturbed.output);
  REQUIRE(undisturbed.status == 0);

  Process killed(job("killed"));
  REQUIRE(killed.wait_for_output("Epoch: [1][ 8/16]", limit));  // Step 24 of 64.
  const std::vector<int> workers = descendants_running(killed.pid(), "train");
  REQUIRE(workers.size() == 2);
  ::kill(workers[1], SIGKILL);

  const auto result = killed.wait(limit);
  INFO(result.output);
  REQUIRE(result.status == 0);
  CHECK(wait_until_gone(workers, 5s));
  int starts = 0;
  for (const auto& line : lines_of(folder / "killed.jsonl")) {
    if (line.at("event") != "start") continue;
    CHECK((starts++ == 0) == (line.at("resumed_from_step") == 0));
  }
  CHECK(starts == 2);
  const bool same_weights =
      newest_tensors(folder / "undisturbed") == newest_tensors(folder / "killed");
  CHECK(same_weights);
}

TEST_CASE("a job that goes on with spares ends with the weights of one that was left alone") {
  TemporaryFolder folder;
  const auto job = [&](const std::string& name, const std::vector<std::string>& spares) {
    return launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) + spares +
           train({"--steps", "64", "--checkpoint-every", "5", "--checkpoint-dir", folder / name});
  };
  const auto undisturbed = run(job("undisturbed", {}), limit);
  INFO(undisturbed.output);
  REQUIRE(undisturbed.status == 0);

  Process killed(job("killed", {"--spares", "2", "--event-log", folder / "events"}));
  REQUIRE(killed.wait_for_output("Epoch: [1][ 8/16]", limit));
  std::map<std::string, std::vector<int>> pids;  // By event, in the order of local ranks.
  const auto read_events = [&] {
    pids.clear();
    for (const auto& event : lines_of(folder / "events")) {
      const std::string name = event.at("event");
      if (name == "worker_started") pids[name].push_back(event.at("worker_pid"));
      if (name == "spare_ready") pids[name].push_back(event.at("spare_pid"));
    }
  };
  read_events();
  // Held, or so small a training would be over before its spares are ready.
  for (const int pid : pids["worker_started"]) ::kill(pid, SIGSTOP);
  for (int i = 0; i < 20'000 && pids["spare_ready"].size() < 2; ++i) {
    killed.wait_for_output("(nobody says this)", 10ms);
    read_events();
  }
  REQUIRE(pids["spare_ready"].size() == 2);
  ::kill(pids["worker_started"][1], SIGKILL);
  ::kill(pids["worker_started"][0], SIGCONT);

  const auto result = killed.wait(limit);
  INFO(result.output);
  REQUIRE(result.status == 0);
  CHECK(contains(result.output, "resumed from "));
  read_events();
  REQUIRE(pids["worker_started"].size() == 4);
  CHECK(pids["worker_started"][2] == pids["spare_ready"][0]);
  CHECK(pids["worker_started"][3] == pids["spare_ready"][1]);
  const bool same_weights =
      newest_tensors(folder / "killed") == newest_tensors(folder / "undisturbed");
  CHECK(same_weights);
}

TEST_CASE("no trainer outlives a launcher killed by SIGKILL") {
  Process job(launch({"--standalone", "--nproc-per-node", "2"}) + train({"--steps", "1000000"}));
  REQUIRE(job.wait_for_output("Epoch: [0][ 2/16]", limit));
  const std::vector<int> workers = descendants_of(job.pid());

  job.send_signal(SIGKILL);

  CHECK(wait_until_gone(workers, 10s));
}

TEST_CASE("a worker killed with no restart left is named and its peer does not hang") {
  Process job(launch({"--standalone", "--nproc-per-node", "2"}) + train({"--steps", "1000000"}));
  REQUIRE(job.wait_for_output("Epoch: [0][ 2/16]", limit));
  const std::vector<int> workers = descendants_running(job.pid(), "train");
  REQUIRE(workers.size() == 2);

  ::kill(workers[0], SIGKILL);

  const auto result = job.wait(20s);
  INFO(result.output);
  CHECK(result.status == 128 + SIGKILL);
  CHECK(contains(result.output, "SIGKILL"));
  CHECK(contains(result.output, "pid " + std::to_string(workers[0])));
}

TEST_CASE("a data file that is cut short is named with what was expected") {
  TemporaryFolder folder;
  for (const char* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                           "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"}) {
    std::filesystem::copy(std::string(DDPRUN_SOURCE_DIR "/data/mnist/") + name, folder / name);
  }
  std::filesystem::resize_file(folder / "train-labels-idx1-ubyte.gz", 2000);

  const auto result =
      run({binary("train"), "--dataset", "mnist", "--data", folder.path(), "--steps", "1"}, limit);

  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status > 0);
  CHECK(result.status < 128);
  CHECK(contains(result.output, folder / "train-labels-idx1-ubyte"));
}

TEST_CASE("a missing data folder is named") {
  const auto result =
      run({binary("train"), "--dataset", "mnist", "--data", "/no/such/folder"}, limit);

  INFO(result.output);
  CHECK(result.status > 0);
  CHECK(result.status < 128);
  CHECK(contains(result.output, "/no/such/folder"));
}

TEST_CASE("a corrupt or foreign checkpoint is refused by name and stays as it was") {
  TemporaryFolder folder;
  const auto made = run(train({"--steps", "2", "--checkpoint-dir", folder / "run"}), limit);
  INFO(made.output);
  REQUIRE(made.status == 0);
  const std::string sound = content_of(newest_checkpoint_in(folder / "run"));

  const std::string foreign_path = folder / "foreign.safetensors";
  std::ofstream(foreign_path, std::ios::binary) << sound;
  const auto foreign = run(train({"--seed", "4", "--steps", "3", "--resume", foreign_path}), limit);
  INFO(foreign.output);
  CHECK(foreign.status > 0);
  CHECK(foreign.status < 128);
  CHECK(contains(foreign.output, foreign_path));
  const bool foreign_untouched = content_of(foreign_path) == sound;
  CHECK(foreign_untouched);

  std::string broken = sound;
  broken[broken.size() / 2] = static_cast<char>(broken[broken.size() / 2] ^ 0x40);
  const std::string broken_path = folder / "broken.safetensors";
  std::ofstream(broken_path, std::ios::binary) << broken;
  const auto corrupt = run(train({"--steps", "3", "--resume", broken_path}), limit);
  INFO(corrupt.output);
  CHECK(corrupt.status > 0);
  CHECK(corrupt.status < 128);
  CHECK(contains(corrupt.output, broken_path));
  const bool broken_untouched = content_of(broken_path) == broken;
  CHECK(broken_untouched);
}

TEST_CASE("a rank that fails alone has said why before its peer can fail of it") {
  const TemporaryFolder folder;
  const auto made = run(train({"--steps", "1", "--checkpoint-dir", folder / "run"}), limit);
  INFO(made.output);
  REQUIRE(made.status == 0);

  // Only rank 0 reads the checkpoint. Rank 1 waits in a collective meanwhile, and fails of its end.
  const std::string file = newest_checkpoint_in(folder / "run");
  for (int i = 0; i < refusals; ++i) {
    const std::string logs = folder / std::to_string(i);
    const std::string report = folder / ("report" + std::to_string(i));
    const auto refused = run(
        launch({"--standalone", "--nproc-per-node", "2", "--log-dir", logs, "--report", report}) +
            train({"--model", "resnet32", "--steps", "2", "--resume", file}),
        limit);
    INFO(refused.output);
    CHECK(refused.status == 1);
    CHECK(nlohmann::json::parse(content_of(report))["first_cause"]["rank"] == 0);
    const auto own = error_file_in(logs, 0), consequence = error_file_in(logs, 1);
    REQUIRE(own);
    CHECK(contains(content_of(*own), R"("message": ")" + file));
    if (!consequence) continue;  // It was stopped before it could say anything.
    CHECK(contains(content_of(*consequence), "rank 0 failed: " + file));
    const bool in_order = last_write_time(*own) <= last_write_time(*consequence);
    CHECK(in_order);
  }
}

TEST_CASE("a checkpoint folder that cannot be written is named before training") {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "not a folder";

  const auto result = run(train({"--steps", "2", "--checkpoint-dir", folder / "file/run"}), limit);

  INFO(result.output);
  CHECK(result.status > 0);
  CHECK(result.status < 128);
  CHECK(contains(result.output, folder / "file/run"));
}

TEST_CASE("a batch larger than the data is refused") {
  const auto result = run(train({"--steps", "2", "--batch-size", "10000"}), limit);

  INFO(result.output);
  CHECK(result.status > 0);
  CHECK(result.status < 128);
  CHECK(contains(result.output, "10000"));
}

TEST_CASE("a rank that does not fit the world is refused by name") {
  const auto result =
      run(train({"--steps", "2"}), limit,
          {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});

  INFO(result.output);
  CHECK(result.status > 0);
  CHECK(result.status < 128);
  CHECK(contains(result.output, "RANK"));
}
