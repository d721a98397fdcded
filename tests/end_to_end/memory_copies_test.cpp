// What a job goes on from when no worker is left: the memory of a node whose launcher lives, else
// the disk. Two nodes, so that each has a memory and a launcher of its own.
#include <csignal>
#include <memory>

#include "tests/end_to_end/recovering_training.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;

namespace {

// Epochs of 8 steps, each of which ends with a checkpoint on the disk; in memory each 2 steps.
std::vector<std::string> two_checkpoints(const TemporaryFolder& folder, const std::string& name) {
  return small_training({"--shards", "4", "--print-freq", "1", "--steps", "24", "--snapshot-every",
                         "2", "--checkpoint-dir", folder / name});
}

// Two nodes with two workers each, past the disk's checkpoint of step 8 and before that of step 16.
class TwoNodes {
 public:
  explicit TwoNodes(const TemporaryFolder& folder) : folder_(folder) { start(); }

  void start() {
    const std::uint16_t port = free_port();
    const std::vector<std::string> options = {"--nproc-per-node", "2",  "--max-restarts", "1",
                                              "--restart-memory", "64M"};
    for (int node = 0; node < 2; ++node) {
      nodes_[node] = std::make_unique<Process>(
          launch_node(node, port, options, two_checkpoints(folder_, "job")), one_thread);
    }
  }
  void wait_until_in_the_second_epoch() {
    const bool there = nodes_[0]->wait_for_output("Epoch: [2][4/8]", recovery_limit);
    INFO(nodes_[0]->output());
    REQUIRE(there);
  }
  // All before any of them can do something about the others.
  void kill_all_workers() {
    std::vector<int> workers;
    for (const auto& node : nodes_) {
      for (const int pid : descendants_running(node->pid(), "train")) workers.push_back(pid);
    }
    REQUIRE(workers.size() == 4);
    for (const int pid : workers) ::kill(pid, SIGSTOP);
    for (const int pid : workers) ::kill(pid, SIGKILL);
  }
  void kill_launchers() {
    std::vector<int> all;
    for (const auto& node : nodes_) {
      for (const int pid : descendants_of(node->pid())) all.push_back(pid);
    }
    for (const auto& node : nodes_) node->send_signal(SIGKILL);
    REQUIRE(wait_until_gone(all, recovery_limit));
  }
  // Both end well; what node 0 has said, with that of rank 0.
  std::string ends_well() {
    const auto first = nodes_[0]->wait(recovery_limit), second = nodes_[1]->wait(recovery_limit);
    INFO(first.output << second.output);
    REQUIRE(first.status == 0);
    REQUIRE(second.status == 0);
    return first.output;
  }
  std::string tensors() const { return newest_tensors(folder_ / "job"); }

 private:
  const TemporaryFolder& folder_;
  std::unique_ptr<Process> nodes_[2];
};

std::string golden() {
  TemporaryFolder folder;
  const auto alone = run(two_checkpoints(folder, "alone"), recovery_limit, one_thread);
  INFO(alone.output);
  REQUIRE(alone.status == 0);
  return newest_tensors(folder / "alone");
}

}  // namespace

TEST_CASE("16.5: when all workers of all nodes die at once the job goes on from memory",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  TwoNodes job(folder);
  job.wait_until_in_the_second_epoch();

  job.kill_all_workers();

  const std::string output = job.ends_well();
  INFO(output);
  REQUIRE(contains(output, "resumed from memory"));
  CHECK(number_after(output.substr(output.find("resumed from memory")), "step ") > 8);
  CHECK_FALSE(contains(output, "goes on in place"));  // Nobody was left who could.
  const bool same_weights = job.tensors() == golden();
  CHECK(same_weights);
}

TEST_CASE("16.5: when all launchers are gone, too, the same command goes on from the disk",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  TwoNodes job(folder);
  job.wait_until_in_the_second_epoch();

  job.kill_launchers();
  job.start();

  const std::string output = job.ends_well();
  INFO(output);
  CHECK(contains(output, "epoch_0001_step_0000008.safetensors: epoch 1, step 8"));
  CHECK_FALSE(contains(output, "resumed from memory"));
  const bool same_weights = job.tensors() == golden();
  CHECK(same_weights);
}

TEST_CASE("16.5: what one node knows of a ruined state counts for the memory of all nodes",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  // On the disk each 6 steps, in memory each 4, too. Rank 0 is halted before it can hear of rank
  // 1's loss, and dies when it is continued: its node knows of nothing.
  auto program = small_training({"--print-freq", "1", "--steps", "14", "--checkpoint-every", "6",
                                 "--snapshot-every", "4", "--checkpoint-dir", folder / "job"});
  program[0] = DDPRUN_DYING_TRAIN;
  const auto variables =
      with_wish("0 0 halt:report 9 0 0 report 9 0 1 nan:forward 8 1 1 report 7 2 1 report 11");
  const std::uint16_t port = free_port();
  const std::vector<std::string> options = {"--nproc-per-node", "1",  "--max-restarts", "3",
                                            "--restart-memory", "64M"};

  Process first(launch_node(0, port, options, program), variables);
  Process second(launch_node(1, port, options, program), variables);

  const auto one = first.wait(recovery_limit), other = second.wait(recovery_limit);
  INFO(one.output << other.output);
  REQUIRE(one.status == 0);
  REQUIRE(other.status == 0);
  // Nor in the attempt after the next, which begins before there is anything new in memory.
  const std::string from_disk = "resumed from " + folder / "job/epoch_0000_step_0000006";
  CHECK(count_of(one.output, from_disk) == 2);
  // The mark is forgotten with what lay beside it: what came later is gone on from again.
  CHECK(contains(one.output, "resumed from memory: epoch 1, step 8\n"));
  CHECK(count_of(one.output, "resumed from ") == 3);
}

TEST_CASE("16.5: a disk that is further than all memories is gone on from",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  // The node of rank 0 has no memory, which would be as far as its disk.
  auto program = small_training({"--steps", "9", "--checkpoint-every", "6", "--snapshot-every", "4",
                                 "--checkpoint-dir", folder / "job"});
  program[0] = DDPRUN_DYING_TRAIN;
  const auto variables = with_wish("0 1 report 8");
  const std::uint16_t port = free_port();
  const std::vector<std::string> options = {"--nproc-per-node", "1", "--max-restarts", "1"};

  Process first(launch_node(0, port, options, program), variables);
  Process second(
      launch_node(1, port, options + std::vector<std::string>{"--restart-memory", "64M"}, program),
      variables);

  const auto one = first.wait(recovery_limit), other = second.wait(recovery_limit);
  INFO(one.output << other.output);
  REQUIRE(one.status == 0);
  REQUIRE(other.status == 0);
  CHECK(contains(one.output, "resumed from " + folder / "job/epoch_0000_step_0000006"));
}

TEST_CASE("16.5: of one step the checkpoint that has its validation is gone on from",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  // The other node's memory has the end of the epoch of 16 steps, as it was before the validation.
  auto program = small_training({"--steps", "18", "--snapshot-every", "16", "--checkpoint-dir",
                                 folder / "job", "--metrics", folder / "metrics"});
  std::erase(program, "--no-validation");
  program[0] = DDPRUN_DYING_TRAIN;
  const auto variables = with_wish("0 1 report 17");
  const std::uint16_t port = free_port();
  const std::vector<std::string> options = {"--nproc-per-node", "1", "--max-restarts", "1"};

  Process first(launch_node(0, port, options, program), variables);
  Process second(
      launch_node(1, port, options + std::vector<std::string>{"--restart-memory", "64M"}, program),
      variables);

  const auto one = first.wait(recovery_limit), other = second.wait(recovery_limit);
  INFO(one.output << other.output);
  REQUIRE(one.status == 0);
  REQUIRE(other.status == 0);
  CHECK(contains(one.output, "resumed from " + folder / "job/epoch_0001_step_0000016"));
  const std::string metrics = content_of(folder / "metrics");
  CHECK(count_of(metrics, "\"event\":\"validation\"") == 2);  // Of step 16 and of step 18.
}

TEST_CASE(
    "16.5: a loss that is no number right after a start from memory costs its checkpoint, too",
    "[recovery][launcher]") {
  const std::vector<std::string> memory = {"--restart-memory", "64M"};
  // Rank 0's own, or that of the other node.
  for (const auto& memory_of_rank_0 : {memory, std::vector<std::string>{}}) {
    TemporaryFolder folder;
    auto program = small_training({"--steps", "9", "--checkpoint-every", "3", "--snapshot-every",
                                   "3", "--checkpoint-dir", folder / "job"});
    program[0] = DDPRUN_DYING_TRAIN;
    const auto variables = with_wish("0 1 report 8 1 0 nan:forward 6");
    const std::uint16_t port = free_port();
    const std::vector<std::string> options = {"--nproc-per-node", "1", "--max-restarts", "2"};

    Process first(launch_node(0, port, options + memory_of_rank_0, program), variables);
    Process second(launch_node(1, port, options + memory, program), variables);

    const auto one = first.wait(recovery_limit), other = second.wait(recovery_limit);
    INFO(one.output << other.output);
    REQUIRE(one.status == 0);
    REQUIRE(other.status == 0);
    CHECK(contains(one.output, memory_of_rank_0.empty()
                                   ? "resumed from memory of the node of rank 1: epoch 1, step 6"
                                   : "resumed from memory: epoch 1, step 6"));
    CHECK(contains(one.output, "the checkpoint of step 6 gives no finite loss: renamed to "));
    CHECK(contains(one.output, "resumed from " + folder / "job/epoch_0000_step_0000003"));
  }
}
