// Recovery in place under ddprun: workers and nodes die, and those that are left keep their
// processes and come to the bits of a run that nobody disturbed.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/end_to_end/recovering_training.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process_state.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;

namespace {

void require_output(Process& process, const std::string& text) {
  const bool said = process.wait_for_output(text, recovery_limit);
  INFO(process.output());
  REQUIRE(said);
}

// Until this attempt has done a step, so that it has a part in the weights.
void wait_until_it_trains(Process& process, const std::string& metrics, int attempt) {
  const auto trains = [&] {
    bool begun = false;
    std::ifstream file(metrics);
    for (std::string line; std::getline(file, line);) {
      const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (event.is_discarded()) break;  // The end of it is still being written.
      if (event.at("event") == "start") begun = event.at("restart_count") == attempt;
      if (begun && event.at("event") == "train") return true;
    }
    return false;
  };
  CHECK(process.wait_until(trains, recovery_limit));
}

int steps_told(const std::string& metrics) {
  return count_of(content_of(metrics), "\"event\":\"train\"");
}

// 24 images of two classes, one of which is none.
void make_images(const std::string& folder) {
  const std::filesystem::path image = DDPRUN_SOURCE_DIR "/tests/fuzz/corpus/jpeg/baseline";
  for (const std::string name : {"/train/cat/", "/train/dog/"}) {
    std::filesystem::create_directories(folder + name);
    for (int i = 0; i < 12; ++i) {
      std::filesystem::copy_file(image, folder + name + std::to_string(i) + ".jpg");
    }
  }
  std::ofstream(folder + "/train/cat/3.jpg") << "this is no image";
}

// SIGTERM has kept the work, and it is that of one worker that is left alone.
void require_saved_by_sigterm(const std::string& output, const std::string& checkpoints) {
  const std::string saved = "SIGTERM: saved step ";
  const std::size_t told = output.rfind(saved);
  REQUIRE(told != std::string::npos);
  const int steps = number_after(output.substr(told), saved);
  const bool same_weights = newest_tensors(checkpoints) == golden_tensors(std::to_string(steps));
  CHECK(same_weights);
}

// The same of a job that runs, which is told to stop. Returns its output.
std::string require_saved_when_stopped(Process& process, const std::string& checkpoints) {
  process.send_signal(SIGTERM);
  const auto stopped = process.wait(recovery_limit);
  INFO(stopped.output);
  REQUIRE(stopped.status == 75);
  require_saved_by_sigterm(stopped.output, checkpoints);
  return stopped.output;
}

}  // namespace

TEST_CASE("16.3: a killed worker is replaced, and the others keep their processes",
          "[recovery][launcher]") {
  const std::string golden = golden_tensors("9");
  for (const std::string spares : {"0", "3"}) {
    TemporaryFolder folder;
    const auto job = launch({"--standalone", "--nproc-per-node", "3", "--max-restarts", "1",
                             "--spares", spares}) +
                     recovering_training(folder, "job", "9");
    const auto ended = run(job, recovery_limit, with_wish("0 1 backward 6"));
    INFO(ended.output);
    REQUIRE(ended.status == 0);
    const auto before = pids_of(ended.output, 0), after = pids_of(ended.output, 1);
    REQUIRE(before.size() == 3);
    REQUIRE(after.size() == 3);
    CHECK(after.at(0) == before.at(0));
    CHECK(after.at(1) != before.at(1));
    CHECK(after.at(2) == before.at(2));
    CHECK(contains(ended.output, "goes on in place from step 6"));
    const bool same_weights = newest_tensors(folder / "job") == golden;
    CHECK(same_weights);
  }
}

TEST_CASE("16.3: a worker that is halted in a step counts as lost, and the others go on in place",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  // That no rank of this machine reaches by itself.
  const double seconds = static_cast<double>(patience(3'000ms).count()) / 1e3;
  const auto job =
      launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--stall-timeout",
              std::to_string(seconds), "--on-stall", "fail", "--report", folder / "report"}) +
      recovering_training(folder, "job", "9");
  const auto ended = run(job, recovery_limit, with_wish("0 1 halt:backward 6"));
  INFO(ended.output);
  REQUIRE(ended.status == 0);
  const auto before = pids_of(ended.output, 0), after = pids_of(ended.output, 1);
  REQUIRE(before.size() == 2);
  REQUIRE(after.size() == 2);
  CHECK(after.at(0) == before.at(0));
  CHECK(after.at(1) != before.at(1));
  CHECK(contains(ended.output, "rank 1 has been halted by a signal for "));
  CHECK(contains(ended.output, "rank 1 counts as lost"));
  CHECK_FALSE(contains(ended.output, "rank 0 counts as lost"));
  const auto report = nlohmann::json::parse(content_of(folder / "report"));
  REQUIRE(report.at("stalls").size() == 1);
  CHECK(report["stalls"][0]["behind"] == std::vector<int>{1});
  // Rank 0 has answered with where it is in the library.
  CHECK(contains(report["stalls"][0]["stacks"], "ddprun::trainer::train("));
  const bool same_weights = newest_tensors(folder / "job") == golden_tensors("9");
  CHECK(same_weights);
}

TEST_CASE("16.3: the others go on also without the worker that was rank 0, twice",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "3"}) +
                   recovering_training(folder, "job", "9");
  const auto ended = run(job, recovery_limit, with_wish("0 0 optimizer 3 1 0 backward 6"));
  INFO(ended.output);
  REQUIRE(ended.status == 0);
  const auto first = pids_of(ended.output, 0);
  REQUIRE(first.size() == 2);
  std::set<int> rank_0 = {first.at(0)};
  for (const int attempt : {1, 2}) {
    const auto pids = pids_of(ended.output, attempt);
    REQUIRE(pids.size() == 2);
    CHECK(pids.at(1) == first.at(1));
    CHECK(rank_0.insert(pids.at(0)).second);
  }
  const bool same_weights = newest_tensors(folder / "job") == golden_tensors("9");
  CHECK(same_weights);
}

TEST_CASE("16.3: an elastic job that grows and shrinks keeps the processes that are left",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto node = launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                            endpoint, "--rdzv-id", "in-place", "--rdzv-conf", "last_call_timeout=0",
                            "--nproc-per-node", "1", "--max-restarts", "3"}) +
                    recovering_training(folder, "elastic", "1000000");
  Process first(node, one_thread);
  require_output(first, "attempt 0 rank 0 of 1 is pid");
  Process second(node, one_thread);
  require_output(first, " rank 0 of 2 is pid");
  require_output(second, " rank 1 of 2 is pid");
  const auto of_second = descendants_of(second.pid());
  second.send_signal(SIGKILL);
  REQUIRE(wait_until_gone(of_second, recovery_limit));
  require_output(first, "attempt 2 rank 0 of 1 is pid");
  require_output(first, "attempt 2 goes on in place");
  wait_until_it_trains(first, folder / "elastic.jsonl", 2);
  const std::string output = require_saved_when_stopped(first, folder / "elastic");
  for (const int attempt : {1, 2}) {
    CHECK(pids_of(output, attempt).at(0) == pids_of(output, 0).at(0));
  }
}

TEST_CASE("16.4: the example goes on when one of its workers is killed", "[recovery][launcher]") {
  Process job(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "3",
                      binary("elastic_train"), "400000"}),
              one_thread);
  require_output(job, "rank 0 of 2 is pid");
  require_output(job, "rank 1 of 2 is pid");
  const int survivor = number_after(job.output(), "rank 0 of 2 is pid ");
  const int victim = number_after(job.output(), "rank 1 of 2 is pid ");
  ::kill(victim, SIGKILL);
  const auto ended = job.wait(recovery_limit);
  INFO(ended.output);
  REQUIRE(ended.status == 0);
  const std::string kept = "rank 0 of 2 is pid " + std::to_string(survivor) + " at step ";
  CHECK(ended.output.find(kept) != ended.output.rfind(kept));  // In two attempts.
  const std::size_t again = ended.output.rfind("rank 1 of 2 is pid ");
  CHECK(number_after(ended.output.substr(again), "rank 1 of 2 is pid ") != victim);
  CHECK(contains(ended.output, "step 400000: y = 3 x + 1"));
}

TEST_CASE(
    "the example for LibTorch gives a new worker the network and the optimizer of another one",
    "[recovery][launcher]") {
  const auto program = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) +
                       std::vector<std::string>{binary("elastic_ddp"), "2000"};
  const auto last_loss = [](const std::string& output) {
    return output.substr(output.find("step 2000: loss "));
  };
  const auto undisturbed = Process(program, one_thread).wait(recovery_limit);
  Process job(program, one_thread);
  require_output(job, "rank 1 of 2 is pid");
  require_output(job, "step 1000: loss");

  ::kill(number_after(job.output(), "rank 1 of 2 is pid "), SIGKILL);

  const auto ended = job.wait(recovery_limit);
  INFO(undisturbed.output << ended.output);
  REQUIRE(ended.status == 0);
  const std::size_t again = ended.output.rfind("rank 1 of 2 is pid ");
  CHECK(number_after(ended.output.substr(again), " at step ") >= 1000);
  CHECK(last_loss(ended.output) == last_loss(undisturbed.output));
}

TEST_CASE("16.3: a job goes on with fewer workers, and takes the replacement in when that is ready",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "1:2", "--max-restarts", "1"}) +
                   recovering_training(folder, "fewer", "1000000");
  // The one that dies was rank 0, so that the other one's rank changes twice.
  Process process(job, with_wish("0 0 optimizer 3"));
  require_output(process, "attempt 1 rank 0 of 1 is pid");
  require_output(process, "attempt 1 goes on in place from step ");
  require_output(process, "attempt 2 rank 0 of 2 is pid");
  require_output(process, "attempt 2 rank 1 of 2 is pid");
  require_output(process, "attempt 2 goes on in place from step ");
  wait_until_it_trains(process, folder / "fewer.jsonl", 2);

  process.send_signal(SIGTERM);

  const auto ended = process.wait(recovery_limit);
  INFO(ended.output);
  REQUIRE(ended.status == 75);
  const int survivor = pids_of(ended.output, 0).at(1);
  CHECK(pids_of(ended.output, 1) == std::map<int, int>{{0, survivor}});
  CHECK(pids_of(ended.output, 2).at(1) == survivor);
  CHECK(contains(ended.output, "has replaced what it had lost; the job goes on with 2 workers"));
  require_saved_by_sigterm(ended.output, folder / "fewer");
}

TEST_CASE("14.10: SIGTERM as soon as the first step is done keeps it", "[launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "2"}) +
                   recovering_training(folder, "one", "1000000");
  const auto ended = run(job, recovery_limit, with_wish("0 0 stop:report 1"));
  INFO(ended.output);
  CHECK(ended.status != 0);
  require_saved_by_sigterm(ended.output, folder / "one");
}

// In its first step no worker of the attempt has voted on a step yet; what was done in the attempt
// before is in their memory alone.
TEST_CASE("16.3: SIGTERM in the first step after a recovery keeps what was done before it",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "1:2", "--max-restarts", "1"}) +
                   recovering_training(folder, "first", "1000000");
  const auto ended =
      run(job, recovery_limit, with_wish("0 0 optimizer 3 1 0 stop:forward 3 1 0 stop:forward 4"));
  INFO(ended.output);
  CHECK(ended.status != 0);
  CHECK(pids_of(ended.output, 1).size() == 1);
  require_saved_by_sigterm(ended.output, folder / "first");
}

// A peer that was told to stop before it had anything to keep does not come any more. Here it is
// halted, and ends by SIGKILL.
TEST_CASE("16.3: SIGTERM while the peers of the next attempt are met keeps what was done",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const double grace = static_cast<double>(patience(8'000ms).count()) / 1e3;
  const auto job = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
                           "--shutdown-timeout", std::to_string(grace)}) +
                   recovering_training(folder, "met", "1000000");
  const auto ended =
      run(job, recovery_limit, with_wish("0 1 backward 6 1 0 stop:meet 6 1 1 halt:meet 0"));
  INFO(ended.output);
  CHECK(ended.status == 75);
  CHECK(contains(ended.output, "SIGTERM: saved step 6 "));
  require_saved_by_sigterm(ended.output, folder / "met");
}

// The peers have come, and the first step takes as long as it takes.
TEST_CASE("16.3: SIGTERM after the peers were met waits for a step of all of them",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "1:2", "--max-restarts", "1"}) +
                   recovering_training(folder, "state", "1000000");
  const auto ended = run(job, recovery_limit, with_wish("0 1 backward 6 1 0 stop:state 6"));
  INFO(ended.output);
  CHECK(ended.status == 75);
  require_saved_by_sigterm(ended.output, folder / "state");
}

// Both nodes of a job that is preempted are told, but not at the same moment.
TEST_CASE("16.3: what workers hold that wait for a lost node is saved when the job is stopped",
          "[recovery][launcher]") {
  for (const int lost_by : {SIGTERM, SIGKILL}) {
    CAPTURE(lost_by);
    TemporaryFolder folder;
    const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
    const auto node =
        launch({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id",
                "parked", "--nproc-per-node", "2", "--max-restarts", "3"}) +
        recovering_training(folder, "job", "1000000");
    Process first(node, one_thread);
    require_output(first, "waiting for 1 more node");
    Process second(node, one_thread);
    require_output(first, "attempt 0 rank 0 of 4 is pid");
    wait_until_it_trains(first, folder / "job.jsonl", 0);
    second.send_signal(lost_by);
    // Its own workers may have had the others agree on a step before their node said goodbye.
    require_output(first, "waiting for 1 more node (1 of 2 nodes here");
    const auto gone = second.wait(recovery_limit);
    first.send_signal(SIGTERM);
    const auto stopped = first.wait(recovery_limit);
    INFO(gone.output << stopped.output);
    CHECK(stopped.status == 75);
    // The second node's workers may have saved the same step, as they were told to end.
    require_saved_by_sigterm(gone.output + stopped.output, folder / "job");
  }
}

TEST_CASE("16.3: a folder of checkpoints that is away during a recovery costs no step",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  Process process(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) +
                      recovering_training(folder, "job", "1000000"),
                  one_thread);
  wait_until_it_trains(process, folder / "job.jsonl", 0);
  std::filesystem::rename(folder / "job", folder / "away");
  std::filesystem::create_symlink("/dev/null", folder / "job");
  ::kill(pids_of(process.output(), 0).at(1), SIGKILL);
  require_output(process, "attempt 1 goes on in place");
  require_output(process, "; trying again, with step ");
  std::filesystem::create_directory_symlink(folder / "away", folder / "back");
  std::filesystem::rename(folder / "back", folder / "job");  // At once: nobody can make it anew.
  require_saved_when_stopped(process, folder / "job");
}

TEST_CASE("16.3: SIGTERM while a worker hangs keeps what the others hold", "[recovery][launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
                           "--shutdown-timeout", patience_seconds(15)}) +
                   recovering_training(folder, "job", "1000000");
  Process process(job, with_wish("0 1 halt:backward 4"));
  require_output(process, "attempt 0 rank 1 of 2 is pid");
  const int halted = pids_of(process.output(), 0).at(1);
  CHECK(process.wait_until([&] { return process_state(halted) == 'T'; }, recovery_limit));
  const std::string output = require_saved_when_stopped(process, folder / "job");
  CHECK(contains(output, "SIGTERM: saved step 4 "));
}

TEST_CASE("16.3: below MIN the wait for a node ends, with a checkpoint and 75",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto node =
      launch({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id",
              "below", "--rdzv-conf", "last_call_timeout=0,join_timeout=" + patience_seconds(3),
              "--nproc-per-node", "1", "--max-restarts", "3"}) +
      recovering_training(folder, "job", "1000000");
  Process first(node, one_thread);
  require_output(first, "waiting for 1 more node");
  Process second(node, one_thread);
  require_output(first, "attempt 0 rank 0 of 2 is pid");
  wait_until_it_trains(first, folder / "job.jsonl", 0);
  second.send_signal(SIGKILL);
  const auto given_up = first.wait(recovery_limit);
  INFO(given_up.output);
  CHECK(given_up.status == 75);
  CHECK(contains(given_up.output, "1 more node did not join within"));
  require_saved_by_sigterm(given_up.output, folder / "job");
}

TEST_CASE("16.3: a rank that is slow takes fewer shards, and no bit is another one",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) +
                   recovering_training(folder, "job", "1000000", {"--balance-shards"});
  auto variables = one_thread;
  variables["SLOW_TRAIN"] = "1 30";
  Process process(job, variables);
  for (const int attempt : {0, 1}) {
    CAPTURE(attempt);
    const auto moved = [&] {
      return count_of(process.output(), "rank 1 takes 1 of 4 shards, 2 before") > attempt;
    };
    CHECK(process.wait_until(moved, recovery_limit));
    const int lines = steps_told(folder / "job.jsonl");
    CHECK(process.wait_until([&] { return steps_told(folder / "job.jsonl") > lines + 2; },
                             recovery_limit));
    if (attempt == 0) ::kill(pids_of(process.output(), 0).at(0), SIGKILL);
  }
  require_saved_when_stopped(process, folder / "job");
}

TEST_CASE("16.3: an image that a survivor could not read before a recovery is told of after it",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  make_images(folder / "set");
  int told = 0;
  // In the last of three steps; the image was in one before.
  for (const std::string victim : {"0", "1"}) {
    const auto job =
        launch(words_of("--standalone --nproc-per-node 2 --max-restarts 1")) +
        std::vector<std::string>{DDPRUN_DYING_TRAIN, "--data", folder / "set"} +
        words_of(
            "--dataset imagefolder --no-validation --image-size 16 --model convnet "
            "--batch-size 2 --shards 4 --seed 3 --device cpu --epochs 1 --on-bad-image skip");
    const auto ended = run(job, recovery_limit, with_wish("0 " + victim + " forward 2"));
    INFO(ended.output);
    REQUIRE(ended.status == 0);
    REQUIRE(contains(ended.output, "goes on in place from step 2"));
    told += count_of(ended.output, "1 image could not be read and was replaced in epoch 1");
  }
  CHECK(told == 1);  // What the dead one alone had met is lost with it.
}
