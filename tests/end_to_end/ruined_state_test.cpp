// A state that came of a loss which is no number, or holds such values, is given to nobody: the
// next attempt of `train --shards` goes on from the last checkpoint, and one restart is enough.
#include <nlohmann/json.hpp>

#include "tests/end_to_end/recovering_training.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;

namespace {

// The job of so many workers, with checkpoints of steps 5 and 10, ends with the bits of one that
// nobody disturbed, in its second attempt, which begins at step 5.
void check_goes_on_from_step_5(int workers, const std::string& wish) {
  TemporaryFolder folder;
  const auto job =
      launch({"--standalone", "--nproc-per-node", std::to_string(workers), "--max-restarts", "1"}) +
      recovering_training(folder, "job", "9");
  const auto ended = run(job, recovery_limit, with_wish(wish));
  INFO(wish << ": " << ended.output);
  REQUIRE(ended.status == 0);
  CHECK(contains(ended.output, "epoch_0000_step_0000005.safetensors: epoch 1, step 5"));
  CHECK_FALSE(contains(ended.output, "goes on in place"));
  CHECK_FALSE(contains(ended.output, ".corrupt"));
  const bool same_weights = newest_tensors(folder / "job") == golden_tensors("9");
  CHECK(same_weights);
  // Those that did not fail kept their processes all the same.
  const auto before = pids_of(ended.output, 0), after = pids_of(ended.output, 1);
  int kept = 0;
  for (const auto& [rank, pid] : before) kept += after.at(rank) == pid ? 1 : 0;
  CHECK(kept == workers - 1);
}

}  // namespace

TEST_CASE("16.5: what a loss that is no number has ruined is given to nobody",
          "[recovery][launcher]") {
  check_goes_on_from_step_5(2, "0 1 nan:forward 6");
  // Also where rank 0 is it, and where gradients travel in another way than during backward.
  check_goes_on_from_step_5(2, "0 0 nan:forward 7");
  check_goes_on_from_step_5(3, "0 1 nan:forward 6");
}

TEST_CASE("16.5: where there is no checkpoint yet a ruined job begins at its first step",
          "[recovery][launcher]") {
  // Rank 0 lives on, and has been at step 3: all give up a loss there, or it its own weights.
  for (const std::string wish : {"0 1 nan:forward 2", "0 0 nan:report 3 0 1 report 3"}) {
    TemporaryFolder folder;
    const auto job = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) +
                     recovering_training(folder, "job", "6");
    const auto ended = run(job, recovery_limit, with_wish(wish));
    INFO(wish << ": " << ended.output);
    REQUIRE(ended.status == 0);
    const int pid = pids_of(ended.output, 0).at(0);
    CHECK(contains(ended.output,
                   "attempt 1 rank 0 of 2 is pid " + std::to_string(pid) + " at step 0"));
    const bool same_weights = newest_tensors(folder / "job") == golden_tensors("6");
    CHECK(same_weights);
  }
}

TEST_CASE("16.5: a survivor whose own weights are no numbers gives them to nobody",
          "[recovery][launcher]") {
  // Its loss of the next step, in which the other one is gone, says so to nobody any more.
  check_goes_on_from_step_5(2, "0 0 nan:report 7 0 1 report 7");
}

TEST_CASE("16.5: a loss that is no number in each attempt ends the job, which reports it once",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  const auto job = launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "2",
                           "--report", folder / "report"}) +
                   recovering_training(folder, "job", "9");
  const auto ended =
      run(job, recovery_limit, with_wish("0 1 nan:forward 6 1 1 nan:forward 6 2 1 nan:forward 6"));
  INFO(ended.output);
  CHECK(ended.status == 1);
  CHECK(count_of(ended.output, "resumed from ") == 2);  // Each of them from the checkpoint.
  CHECK(count_of(ended.output, "first cause") == 1);
  // By who met it in each attempt, and in the report; the others were thrown out by it.
  CHECK(count_of(ended.output, "train: rank 1: the loss is nan at step 7") == 3);
  CHECK(count_of(ended.output, "train: rank 0") == 0);
  const auto cause = nlohmann::json::parse(content_of(folder / "report")).at("first_cause");
  CHECK(cause.at("rank") == 1);
  CHECK(cause.at("attempt") == 2);
  CHECK(contains(cause.at("message"), "the loss is nan at step 7"));
}
