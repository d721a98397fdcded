// `train` in mixed precision, without overlap and with replicas: the program as users run it.
#include <cmath>

#include "tests/testing/catch.h"
#include "tests/trainer/trail.h"

using namespace ddprun::trainer;

namespace {

// `workers` under ddprun; 0: without a launcher.
int train(const ScratchFolder& folder, int workers, const std::string& more) {
  std::string arguments = "--dataset synthetic --synthetic-images 64 --synthetic-classes 10 ";
  arguments += "--image-size 20 --model resnet20 --batch-size 8 --lr 0.01 --print-freq 1 ";
  arguments += "--workers 0 --device cpu --metrics " + in_quotes(folder / "metrics") + " " + more;
  return run_train(workers, arguments, folder).code;
}

}  // namespace

TEST_CASE("losses in bfloat16 and float16 follow those in float32",
          "[trainer][program][precision]") {
  std::vector<std::vector<double>> all;
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    const ScratchFolder folder;
    const int code = train(folder, 2, "--epochs 2 --precision " + precision);
    INFO(content_of(folder / "out"));
    REQUIRE(code == 0);
    all.push_back(losses(folder / "metrics"));
    REQUIRE(all.back().size() == 8);
    CHECK(events(folder / "metrics", "start").front()["precision"] == precision);
    CHECK(std::isfinite(events(folder / "metrics", "validation").back()["loss"].get<double>()));
    for (std::size_t i = 0; i < 8; ++i)
      CHECK(std::abs(all.back()[i] - all[0][i]) < 0.1 * all[0][i]);
  }
  CHECK(all[1] != all[0]);
  CHECK(all[2] != all[0]);
}

TEST_CASE("the fused optimizer and resident data change no loss", "[trainer][program][fused]") {
  const std::string recipe =
      "--epochs 2 --augment pad-crop,flip --nesterov --no-decay bn,bias --precision fp16 ";
  const ScratchFolder plain, own;
  REQUIRE(train(plain, 2, recipe) == 0);
  const int code = train(own, 2, recipe + "--fused-optimizer --resident-data");
  INFO(content_of(own / "out"));
  REQUIRE(code == 0);
  const std::vector<double> expected = losses(plain / "metrics"), found = losses(own / "metrics");
  REQUIRE(found.size() == 8);
  CHECK(found[0] == expected[0]);  // Before the first update: the same images.
  for (std::size_t i = 0; i < 8; ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-2));
  const auto validated = [](const ScratchFolder& folder) {
    return events(folder / "metrics", "validation").back()["loss"].get<double>();
  };
  CHECK(validated(own) == Approx(validated(plain)).epsilon(2e-2));
}

TEST_CASE("batch norms by the kernels of a GPU step change no loss", "[trainer][program][fused]") {
  for (const std::string precision : {"fp32", "bf16"}) {
    const std::string recipe = "--epochs 2 --precision " + precision + " ";
    const ScratchFolder plain, fused;
    REQUIRE(train(plain, 2, recipe) == 0);
    const int code = train(fused, 2, recipe + "--fused-norm");
    INFO(content_of(fused / "out"));
    REQUIRE(code == 0);
    const auto expected = losses(plain / "metrics"), found = losses(fused / "metrics");
    REQUIRE(found.size() == 8);
    CHECK(found != expected);  // Sums in another order: they are what ran.
    const auto kernels = [](const ScratchFolder& folder) {
      return events(folder / "metrics", "start").front()["own_kernels"];
    };
    CHECK(kernels(plain) == "");
    CHECK(kernels(fused) == "fused-norm");
    CHECK(contains(content_of(fused / "out"), "--fused-norm runs the kernels of a GPU as loops"));
    // Before the first update; later ones double what differs from step to step.
    CHECK(found[0] == Approx(expected[0]).epsilon(precision == "fp32" ? 1e-5 : 1e-2));
    for (std::size_t i = 0; i < 8; ++i) CHECK(found[i] == Approx(expected[i]).epsilon(2e-2));
  }
}

TEST_CASE("the stem's pooling by the kernels of a GPU step changes no loss",
          "[trainer][program][fused]") {
  // One update is compared closely. After it a maximum of two values that rounding tells apart may
  // come from the other one, and where that is depends on the processor and the seed.
  const std::string recipe =
      "--model resnet18 --stem imagenet --image-size 40 --epochs 2 --lr 0.001 ";
  const ScratchFolder plain, own;
  REQUIRE(train(plain, 2, recipe) == 0);
  const int code = train(own, 2, recipe + "--fused-pool");
  INFO(content_of(own / "out"));
  REQUIRE(code == 0);
  const auto expected = losses(plain / "metrics"), found = losses(own / "metrics");
  REQUIRE(found.size() == 8);
  CHECK(contains(content_of(own / "out"), "--fused-pool runs the kernels of a GPU as loops"));
  CHECK(found[0] == expected[0]);  // Before gradients were added up in another order.
  CHECK(found[1] == Approx(expected[1]).epsilon(1e-5));
  for (std::size_t i = 2; i < 8; ++i) CHECK(found[i] == Approx(expected[i]).epsilon(2e-2));
}

TEST_CASE("working copies change no bit, alone, with a graph, and of shards",
          "[trainer][program][fused]") {
  for (const std::string recipe :
       {"--precision bf16 ", "--precision fp16 --fused-optimizer ",
        "--precision bf16 --fused-optimizer --cuda-graph ", "--precision bf16 --shards 4 "}) {
    const ScratchFolder plain, copies;
    const auto options = [&](const ScratchFolder& folder) {
      // Small images: LibTorch's convolutions of 16 bits are slow on processors without them.
      return "--image-size 8 --epochs 2 --conv-algorithm direct --nesterov --checkpoint-dir " +
             in_quotes((folder / "checkpoints").string()) + " " + recipe;
    };
    REQUIRE(train(plain, 2, options(plain)) == 0);
    const int code = train(copies, 2, options(copies) + "--working-copies");
    INFO(recipe << content_of(copies / "out"));
    REQUIRE(code == 0);
    CHECK(trail_of(copies) == trail_of(plain));
  }
}

TEST_CASE("data that only the loader can make is not kept on the device",
          "[trainer][program][resident]") {
  const ScratchFolder folder;
  CHECK(train(folder, 0, "--resident-data --augment random-resized-crop") == 2);
  CHECK(contains(content_of(folder / "out"),
                 "--resident-data: the training set cannot lie in the memory of the device: random "
                 "resized crops need the loader; leave it out"));
}

TEST_CASE("without overlap losses have the same digits", "[trainer][program]") {
  const ScratchFolder overlapped, at_once;
  REQUIRE(train(overlapped, 2, "--epochs 2 --no-validation --overlap") == 0);
  REQUIRE(train(at_once, 2, "--epochs 2 --no-validation --no-overlap") == 0);
  CHECK(losses(overlapped / "metrics").size() == 8);
  CHECK(losses(overlapped / "metrics") == losses(at_once / "metrics"));
}

TEST_CASE("replicas train and validate, in one worker and in two", "[trainer][program][dp]") {
  const ScratchFolder replicas, both;
  const int code = train(replicas, 0, "--epochs 2 --data-parallel 2");
  INFO(content_of(replicas / "out"));
  REQUIRE(code == 0);
  CHECK(losses(replicas / "metrics").size() == 16);
  CHECK(events(replicas / "metrics", "start").front()["replicas"] == 2);
  CHECK(events(replicas / "metrics", "validation").size() == 2);

  REQUIRE(train(both, 2, "--epochs 1 --data-parallel 2 --precision bf16") == 0);
  CHECK(losses(both / "metrics").size() == 4);
}

TEST_CASE("the loss scale goes on where a checkpoint left it", "[trainer][program][precision]") {
  const ScratchFolder folder;
  const std::string more = " --epochs 2 --precision fp16 --no-validation --checkpoint-dir " +
                           in_quotes((folder / "c").string());

  REQUIRE(train(folder, 0, "--steps 4" + more) == 0);
  const int code = train(folder, 0, "--steps 7" + more);

  INFO(content_of(folder / "out"));
  REQUIRE(code == 0);
  CHECK(contains(content_of(folder / "out"), "resumed from"));
  // Steps since the last one that was left out; an event tells of each.
  std::int64_t skipped = 0;
  std::string scale = "65536";
  for (const Json& event : events(folder / "metrics", "loss_scale")) {
    skipped = event["step"];
    scale = std::to_string(event["scale"].get<std::int64_t>());
  }
  const std::string file = content_of(folder / "c/epoch_0000_step_0000007.safetensors");
  CHECK(contains(file, "\"loss_scaler/scale\":\"" + scale + "\""));
  CHECK(contains(file, "\"loss_scaler/growth_steps\":\"" + std::to_string(7 - skipped) + "\""));
}

TEST_CASE("bad combinations are refused with the option's name", "[trainer][program]") {
  const ScratchFolder folder;
  const auto refused = [&](const std::string& arguments, const std::string& part) {
    CHECK(train(folder, 0, arguments) == 2);
    INFO(arguments << "\n" << content_of(folder / "out"));
    CHECK(contains(content_of(folder / "out"), part));
  };
  refused("--precision fp8", "--precision");
  refused("--data-parallel 0", "--data-parallel");
  refused("--data-parallel 9", "--data-parallel 9");
}
