// A run with --cuda-graph ends with the bits of one without. On the CPU, where a replay calls the
// step again on the memory that it was recorded with.
#include "tests/testing/catch.h"
#include "tests/trainer/data/made_up_sets.h"
#include "tests/trainer/trail.h"

using namespace ddprun::trainer;

namespace {

std::string unpacked(const std::string& name) {
  const ScratchFolder folder;
  REQUIRE(run_command("gzip -dc " + in_quotes(mnist + "/" + name + ".gz"), folder / "bytes") == 0);
  return content_of(folder / "bytes");
}

// The first images of MNIST: epochs that end within a test, with a smaller last step.
void cut_mnist(const std::filesystem::path& folder, const std::string& part, std::uint32_t images) {
  const std::string pixels = unpacked(part + "-images-idx3-ubyte");
  write_bytes(folder / (part + "-images-idx3-ubyte"),
              big_endian(0x803) + big_endian(images) + big_endian(28) + big_endian(28) +
                  pixels.substr(16, std::size_t{images} * 28 * 28));
  write_bytes(folder / (part + "-labels-idx1-ubyte"),
              idx_labels(unpacked(part + "-labels-idx1-ubyte").substr(8, images)));
}

// Runs it to the end; `output`: what it said.
Trail run(const std::string& options, int workers, std::string* output = nullptr) {
  const ScratchFolder folder;
  const Result result =
      run_train(workers,
                "--device cpu --fused-optimizer --print-freq 1 --metrics " +
                    in_quotes((folder / "metrics").string()) + " --checkpoint-dir " +
                    in_quotes((folder / "checkpoints").string()) + " " + options,
                folder);
  INFO(options);
  INFO(result.output);
  REQUIRE(result.code == 0);
  if (output != nullptr) *output = result.output;
  return trail_of(folder);
}

// Seven whole steps of 16 images for two workers, and one of 9.
const std::string small =
    "--dataset synthetic --image-size 16 --synthetic-images 241 --synthetic-classes 10 --epochs 2 "
    "--batch-size 16 --lr 0.05 --lr-schedule cosine --no-validation ";

}  // namespace

TEST_CASE(
    "fifty steps of replays have the bits of steps that are not, over epochs, validations "
    "and checkpoints",
    "[trainer][graph]") {
  const ScratchFolder data;
  cut_mnist(data.path(), "train", 375);  // 23 steps of 16 and one of 7.
  cut_mnist(data.path(), "t10k", 50);
  const std::string options =
      "--dataset mnist --data " + in_quotes(data.path().string()) +
      " --model resnet20 --batch-size 16 --steps 50 --lr 0.1 --lr-schedule cosine --warmup-steps 5 "
      "--nesterov --checkpoint-every 10 ";
  std::string output;
  const Trail plain = run(options, 0);
  const Trail graphed = run(options + "--cuda-graph", 0, &output);
  CHECK(plain.steps.size() == 50);
  CHECK(plain.validations.size() == 3);
  CHECK(graphed == plain);
  CHECK(contains(output, "Step 4: it is recorded as a graph"));
  CHECK(contains(output, "Step 24: a step of 7 images is not of the graph, which has 16"));
}

TEST_CASE("a run that goes on from a checkpoint records anew, and has the same bits",
          "[trainer][graph]") {
  const ScratchFolder first, second;
  const auto places = [](const ScratchFolder& folder) {
    return small + "--model resnet20 --device cpu --fused-optimizer --cuda-graph --print-freq 1 " +
           "--checkpoint-every 5 --keep-checkpoints 9 --metrics " +
           in_quotes((folder / "metrics").string()) + " --checkpoint-dir " +
           in_quotes((folder / "checkpoints").string());
  };
  REQUIRE(run_train(2, places(first), first).code == 0);
  const auto middle = first / "checkpoints/epoch_0000_step_0000005.safetensors";
  const Result rest =
      run_train(2, places(second) + " --resume " + in_quotes(middle.string()), second);
  INFO(rest.output);
  REQUIRE(rest.code == 0);
  CHECK(contains(rest.output, "Step 10: it is recorded as a graph"));  // Step 8 has fewer images.
  CHECK(trail_of(second).weights == trail_of(first).weights);
  CHECK(trail_of(first) == run(small + "--model resnet20 --cuda-graph --checkpoint-every 5", 2));
}

TEST_CASE("a replay does all that its step does", "[trainer][graph]") {
  // Options that are parts of a step of their own share a run, as each run starts four processes.
  for (const std::string more :
       {"--model convnet --precision fp16 --device-normalize --augment pad-crop,flip",
        "--model convnet --accumulate 2 --clip-grad-norm 0.5",
        "--model resnet20 --sync-bn --verify-sync 3 --ema 0.9 --momentum 0 --precision bf16 "
        "--grad-dtype bf16 --no-overlap --resident-data --augment pad-crop,flip "
        "--label-smoothing 0.1 --image-size 8"}) {
    INFO(more);
    const Trail plain = run(small + more, 2);
    std::string output;
    CHECK(run(small + more + " --cuda-graph", 2, &output) == plain);
    CHECK(contains(output, "it is recorded as a graph"));
  }
}
