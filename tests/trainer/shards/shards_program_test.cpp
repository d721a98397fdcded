// The golden chain: `train --shards` ends with the same bits on any number of workers, also when
// the number changes on the way.
#include <algorithm>

#include "tests/testing/catch.h"
#include "tests/trainer/trail.h"

using namespace ddprun::trainer;

namespace {

const std::string small_resnet =
    "--dataset synthetic --image-size 16 --synthetic-images 150 --synthetic-classes 10 "
    "--model resnet20 --lr 0.05 --batch-size 4 ";

Result train(int workers, const std::string& arguments, const ScratchFolder& folder) {
  const std::string places = "--device cpu --print-freq 1 --metrics " +
                             in_quotes((folder / "metrics").string()) + " --checkpoint-dir " +
                             in_quotes((folder / "checkpoints").string()) + " ";
  return run_train(workers > 1 ? workers : 0, places + arguments, folder);
}

Trail trained(int workers, const std::string& arguments) {
  const ScratchFolder folder;
  const Result result = train(workers, arguments, folder);
  INFO(workers << " workers: " << result.output);
  REQUIRE(result.code == 0);
  return trail_of(folder);
}

void check_equal(const Trail& trail, const Trail& expected) {
  CHECK(trail.steps == expected.steps);
  CHECK(trail.validations == expected.validations);
  const bool same_weights = trail.weights == expected.weights;
  CHECK(same_weights);
}

void check_chain(const std::string& arguments, const std::vector<int>& chain) {
  const Trail expected = trained(chain.front(), arguments);
  REQUIRE(!expected.steps.empty());
  for (std::size_t i = 1; i < chain.size(); ++i) {
    INFO(chain[i] << " workers beside " << chain.front() << ": " << arguments);
    check_equal(trained(chain[i], arguments), expected);
  }
}

// As `arguments` ask, by one number of workers after the other: each goes on where the one before
// has stopped.
Trail trained_in_turns(const std::string& arguments,
                       const std::vector<std::pair<int, int>>& workers_and_steps) {
  const ScratchFolder folder;
  for (const auto& [workers, steps] : workers_and_steps) {
    const Result result =
        train(workers, arguments + " --steps " + std::to_string(steps) + " ", folder);
    INFO(workers << " workers to step " << steps << ": " << result.output);
    REQUIRE(result.code == 0);
    CHECK_FALSE(contains(result.output, "seen again"));
  }
  return trail_of(folder);
}

std::string refusal(int workers, const std::string& arguments) {
  const ScratchFolder folder;
  const Result result = train(workers, arguments, folder);
  INFO(result.output);
  CHECK(result.code == 2);
  return result.output;
}

}  // namespace

TEST_CASE("golden chain: any number of workers trains a ResNet to the same bits",
          "[trainer][program][shards]") {
  // The last batch of an epoch is smaller: 19 images a shard are 4 batches of 4 and one of 3.
  check_chain(small_resnet + "--shards 8 --steps 7 ", {8, 1, 2, 3, 4});
}

TEST_CASE("golden chain: dropout and augmentation are a shard's own, on MNIST",
          "[trainer][program][shards]") {
  const std::string arguments = "--dataset mnist --data " + mnist +
                                " --model convnet --augment pad-crop --batch-size 8 --steps 12 "
                                "--shards 8 --no-validation ";
  // A shard for each worker, all for one, and unlike numbers; that even parts are the same, the
  // first chain shows.
  check_chain(arguments, {8, 1, 3});
}

TEST_CASE("golden chain: with everything that a recipe adds", "[trainer][program][shards]") {
  check_chain(small_resnet +
                  "--shards 5 --steps 6 --accumulate 2 --clip-grad-norm 0.5 --ema 0.9 "
                  "--label-smoothing 0.1 --verify-sync 2 ",
              {5, 1, 3});
  check_chain(small_resnet + "--shards 4 --steps 3 --precision bf16 --optimizer lars --lr 1 ",
              {4, 3});
  // 3 and 4 are no fellows in the tree of 6, so these go another way than all-reduce.
  check_chain(small_resnet + "--shards 6 --steps 3 --memory-format nchw --nesterov ", {6, 2, 5});
}

TEST_CASE("the number of workers may change from one checkpoint to the next, and no bit does",
          "[trainer][program][shards]") {
  const std::string arguments = small_resnet + "--shards 8 --ema 0.9 ";
  // Step 4 is in the middle of the first epoch, and step 7 in that of the second.
  const Trail undisturbed = trained(1, arguments + "--steps 10 ");
  const Trail changed = trained_in_turns(arguments + "--no-validation ", {{4, 4}, {3, 7}, {1, 10}});
  CHECK(changed.steps == undisturbed.steps);
  const bool same_weights = changed.weights == undisturbed.weights;
  CHECK(same_weights);
}

TEST_CASE("as many shards as workers train the weights of a run without shards",
          "[trainer][program][shards]") {
  const std::string convnet = "--dataset mnist --data " + mnist +
                              " --model convnet --batch-size 16 --steps 10 --no-validation ";
  for (const int workers : {2, 3}) {
    const Trail plain = trained(workers, convnet);
    const Trail sharded = trained(workers, convnet + "--shards " + std::to_string(workers) + " ");
    const bool same_weights = plain.weights == sharded.weights;
    CHECK(same_weights);
    // Rank 0's batch alone on one side, those of all shards on the other.
    CHECK(plain.steps != sharded.steps);
  }
}

TEST_CASE("one worker computes with one thread where shards are asked for",
          "[trainer][program][shards]") {
  const auto weights = [&](const std::string& environment) {
    const ScratchFolder folder;
    const std::string arguments = small_resnet +
                                  "--shards 2 --steps 2 --no-validation --device cpu "
                                  "--checkpoint-dir " +
                                  in_quotes((folder / "checkpoints").string());
    const Result result = run_train(0, arguments, folder, environment);
    INFO(result.output);
    REQUIRE(result.code == 0);
    return tensor_bytes(folder / "checkpoints/last.safetensors");
  };
  // LibTorch otherwise takes as many as there are cores.
  const bool same = weights("env -u OMP_NUM_THREADS ") == weights("OMP_NUM_THREADS=1 ");
  CHECK(same);
}

TEST_CASE("what shards cannot be is refused by name", "[trainer][program][shards]") {
  CHECK(contains(refusal(3, small_resnet + "--shards 2 --steps 1"),
                 "--shards 2: 3 workers are more than that"));
  const std::string two = small_resnet + "--shards 2 --steps 1 ";
  CHECK(contains(refusal(1, two + "--sync-bn"), "--sync-bn and --shards"));
  CHECK(contains(refusal(1, two + "--grad-dtype bf16"), "--grad-dtype of 16 bits and --shards"));
  CHECK(contains(refusal(1, two + "--power-sgd 4"), "--power-sgd and --shards"));
  CHECK(contains(refusal(1, two + "--data-parallel 2"), "--data-parallel and --shards"));
  CHECK(contains(refusal(1, two + "--print-sample-order 0"), "--rank v --world-size V"));
}

TEST_CASE("a checkpoint remembers its number of shards", "[trainer][program][shards]") {
  const ScratchFolder folder;
  const std::string arguments = small_resnet + "--no-validation ";
  REQUIRE(train(2, arguments + "--shards 4 --steps 2", folder).code == 0);
  const Result other = train(2, arguments + "--shards 8 --steps 4", folder);
  CHECK(other.code == 2);
  CHECK(contains(other.output, "the checkpoint's steps have --shards 4 and not 8"));
  const Result anyway = train(1, arguments + "--shards 8 --steps 3 --resume-anyway", folder);
  INFO(anyway.output);
  CHECK(anyway.code == 0);
  // One that was forgotten is another one: each step would become one of fewer images.
  const Result forgotten = train(1, arguments + "--steps 4", folder);
  INFO(forgotten.output);
  CHECK(forgotten.code == 2);
  CHECK(contains(forgotten.output, "the checkpoint's steps have --shards 8 and not 0"));
  const Result without = train(1, arguments + "--steps 4 --resume-anyway", folder);
  INFO(without.output);
  CHECK(without.code == 0);
  CHECK(contains(without.output, "the state of 'shards', which this run does not have"));
  // From here on there is none, and nothing says that there is.
  const Result again = train(1, arguments + "--steps 5", folder);
  INFO(again.output);
  CHECK(again.code == 0);
  CHECK_FALSE(contains(again.output, "shards"));
}

TEST_CASE(
    "a warm-up in epochs is not begun anew with other batches, also where --steps ends the run",
    "[trainer][program]") {
  const ScratchFolder folder;
  const std::string arguments =
      "--dataset synthetic --image-size 16 --synthetic-images 64 --model convnet --lr 0.01 "
      "--warmup-epochs 1 --no-validation ";
  REQUIRE(train(1, arguments + "--batch-size 16 --steps 6 ", folder).code == 0);
  const Result smaller = train(1, arguments + "--batch-size 4 --steps 12 ", folder);
  INFO(smaller.output);
  REQUIRE(smaller.code == 0);
  std::vector<double> rates;
  for (const Json& step : events(folder / "metrics", "train")) rates.push_back(step["lr"]);
  REQUIRE(rates.size() == 12);
  CHECK(rates[1] == Approx(0.005));
  CHECK(std::all_of(rates.begin() + 4, rates.end(), [](double rate) { return rate == 0.01; }));
}

TEST_CASE("the long golden chain: an epoch of MNIST, and 100 steps of ResNet-18",
          "[.][long][trainer][program][shards]") {
  check_chain(
      "--dataset mnist --data " + mnist + " --model convnet --epochs 1 --batch-size 64 --shards 8 ",
      {8, 1, 2, 3, 4});
  check_chain(
      "--dataset synthetic --image-size 32 --synthetic-classes 10 --model resnet18 --lr 0.02 "
      "--batch-size 2 --steps 100 --shards 8 --no-validation ",
      {8, 1, 2, 3, 4});
}
