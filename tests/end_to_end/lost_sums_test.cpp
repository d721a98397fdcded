// A peer that is lost in a step, where what its sums leave looks like sums, as over NCCL
// (lost_sums.cpp): nothing is kept of that step, and the next attempt repeats it.
#include "tests/end_to_end/recovering_training.h"

using namespace ddprun::testing;

namespace {

constexpr int summed_steps = 10;  // A checkpoint each five.

// A clean job's weights, or those of one whose rank 1 dies, and what it said.
std::pair<std::string, std::string> train_two(const std::string& wish,
                                              const std::vector<std::string>& more) {
  TemporaryFolder folder;
  // The gradients in one sum: after one that was lost the next would throw.
  auto train =
      small_training({"--no-overlap", "--print-freq", "1", "--checkpoint-every", "5", "--steps",
                      std::to_string(summed_steps), "--checkpoint-dir", folder / "job"}) +
      more;
  train[0] = DDPRUN_DYING_TRAIN;
  auto variables = with_wish(wish);
  variables["LOST_SUMS"] = "1";
  const auto ended =
      run(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) + train,
          recovery_limit, variables);
  INFO(ended.output);
  REQUIRE(ended.status == 0);
  return {newest_tensors(folder / "job"), ended.output};
}

}  // namespace

TEST_CASE("16.3: a survivor keeps its weights when the one that gives the state is lost",
          "[recovery][launcher]") {
  TemporaryFolder folder;
  auto variables = with_wish("0 3 backward 4 1 0 state 4");
  variables["LOST_SUMS"] = "1";
  const auto ended = run(launch({"--standalone", "--nproc-per-node", "4", "--max-restarts", "2"}) +
                             recovering_training(folder, "job", "9"),
                         recovery_limit, variables);
  INFO(ended.output);
  REQUIRE(ended.status == 0);
  CHECK(contains(ended.output, "attempt 2 goes on in place from step 4"));
  const bool same_weights = newest_tensors(folder / "job") == golden_tensors("9");
  CHECK(same_weights);
}

TEST_CASE("a checkpoint that is due after a step in which a peer is lost is not written",
          "[recovery][launcher]") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, std::vector<std::string>{"--ema", "0.9"}}) {
    const auto clean = train_two("", more).first;
    // In the last step: what were kept of it would be the whole run's result.
    const auto [weights, output] = train_two("0 1 backward 9", more);
    INFO(output);
    CHECK(contains(output, "epoch_0000_step_0000005.safetensors: epoch 1, step 5"));
    const bool same_weights = weights == clean;
    CHECK(same_weights);
  }
}
