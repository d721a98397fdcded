// What workers must have alike: which settings are compared, and how a difference is said.
#include "trainer/consistency/run_settings.h"

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/trainer/options/parse_options.h"

using namespace ddprun::trainer;
using ddprun::testing::contains;

namespace {

// The settings of a worker with this command line, on data that all have alike.
std::string settings(const std::vector<const char*>& arguments, RunFacts facts = {}) {
  const CommandLine parsed = parse(arguments);
  REQUIRE(parsed.options);
  facts.micro_batch_size = parsed.options->batch_size.value_or(64);
  facts.kernels = own_kernels(*parsed.options, /*gpu=*/false);
  return settings_text(*parsed.options, facts);
}

}  // namespace

TEST_CASE("a worker's own options and those of rank 0 alone are not compared", "[settings]") {
  const std::string plain = settings({});
  for (const std::vector<const char*>& own : std::vector<std::vector<const char*>>{
           {"--rank", "1", "--world-size", "2", "--local-rank", "1"},
           {"--data", "/elsewhere", "--workers", "7", "--interface", "lo"},
           {"--checkpoint-dir", "/some/folder", "--resume", "/some/file", "--print-freq", "3"},
           {"--metrics", "file", "--tensorboard", "folder", "--profile", "folder"},
           {"--connect-timeout", "9", "--collective-timeout", "9", "--data-parallel", "2"},
           // Given, but the same as without.
           {"--epochs", "90", "--batch-size", "64", "--lr", "0.1", "--no-decay", "none"}}) {
    INFO(own.front());
    CHECK(settings(own) == plain);
  }
}

TEST_CASE("each option that changes what is trained makes a difference that names it",
          "[settings]") {
  const std::string plain = settings({});
  for (const std::vector<const char*>& one :
       std::vector<std::vector<const char*>>{{"--batch-size", "32"},
                                             {"--accumulate", "2"},
                                             {"--shards", "4"},
                                             {"--epochs", "5"},
                                             {"--steps", "5"},
                                             {"--seed", "5"},
                                             {"--label-smoothing", "0.1"},
                                             {"--sync-bn"},
                                             {"--grad-dtype", "bf16"},
                                             {"--grad-dtype", "fp16"},
                                             {"--power-sgd", "2"},
                                             {"--precision", "bf16"},
                                             {"--fused-optimizer"},
                                             {"--fused-norm"},
                                             {"--fused-pool"},
                                             {"--verify-sync"},
                                             {"--optimizer", "lars"},
                                             {"--lr", "0.2"},
                                             {"--lr-schedule", "cosine"},
                                             {"--warmup-steps", "5"},
                                             {"--momentum", "0.8"},
                                             {"--nesterov"},
                                             {"--weight-decay", "0"},
                                             {"--no-decay", "bn"},
                                             {"--no-decay", "bias"},
                                             {"--no-decay", "bn,bias"},
                                             {"--tf32", "on"},
                                             {"--tf32", "off"},
                                             {"--verify-sync", "7"},
                                             {"--clip-grad-norm", "1"},
                                             {"--ema", "0.9"},
                                             {"--on-bad-image", "skip"},
                                             {"--dataset", "cifar10"}}) {
    const std::string difference = settings_difference({plain, settings(one)});
    INFO(one.front() << ": " << difference);
    CHECK(contains(difference, std::string("rank 1 has ") + one.front()));
  }
  CHECK(contains(settings_difference({settings({"--dataset", "imagefolder"}),
                                      settings({"--dataset", "imagefolder", "--device-jpeg"})}),
                 "rank 1 has --device-jpeg"));
  for (const auto& [needed, one] : std::vector<std::pair<std::vector<const char*>, const char*>>{
           {{"--shards", "4"}, "--balance-shards"},
           {{"--resume", "file"}, "--evaluate"},
           {{"--device", "cuda"}, "--cuda-graph"}}) {
    std::vector<const char*> more = needed;
    more.push_back(one);
    const std::string difference = settings_difference({settings(needed), settings(more)});
    INFO(one << ": " << difference);
    CHECK(contains(difference, std::string(" ") + one + " on where rank 0 has off"));
  }
  CHECK(contains(settings_difference({settings({"--optimizer", "lars"}),
                                      settings({"--optimizer", "lars", "--lars-trust", "0.1"})}),
                 "rank 1 has --lars-trust 0.1"));
  CHECK(contains(
      settings_difference({settings({"--no-decay", "bn"}), settings({"--no-decay", "bn,bias"})}),
      "--no-decay bn,bias where rank 0 has bn"));
  CHECK(contains(settings_difference({plain, settings({"--no-overlap"})}),
                 "--overlap off where rank 0 has on"));
  CHECK(contains(settings_difference({settings({"--power-sgd", "2"}),
                                      settings({"--power-sgd", "2", "--power-sgd-start", "3"})}),
                 "rank 1 has --power-sgd-start"));
  CHECK(contains(settings_difference({settings({"--shards", "4", "--recover", "restart"}),
                                      settings({"--shards", "4"})}),
                 "--recover in-place where rank 0 has restart"));
  CHECK(settings_difference(
            {settings({"--shards", "4", "--recover", "in-place"}), settings({"--shards", "4"})})
            .empty());
  CHECK(contains(settings_difference({plain, settings({"--lr-gamma", "0.5"})}),
                 "--lr-schedule times 0.5 every 30 epochs where rank 0 has times 0.1 every 30"));
  // With an option that it needs.
  CHECK(contains(settings_difference({settings({"--precision", "bf16"}),
                                      settings({"--precision", "bf16", "--working-copies"})}),
                 "rank 1 has --working-copies"));
}

TEST_CASE("the data that workers found is compared as well", "[settings]") {
  const std::string some = settings({}, {.classes = 10, .training_images = 100});
  CHECK(contains(settings_difference({some, settings({}, {.classes = 10, .training_images = 90})}),
                 "rank 1 has a number of training images of 90 where rank 0 has 100"));
  CHECK(contains(settings_difference({some, settings({}, {.classes = 9, .training_images = 100})}),
                 "rank 1 has a number of classes of 9 where rank 0 has 10"));
  CHECK(
      contains(settings_difference({settings({}, {.classes = 2, .class_names = "cat,dog"}),
                                    settings({}, {.classes = 2, .class_names = "dog,zebra"})}),
               "rank 1 has class 0 dog where rank 0 has cat, class 1 zebra where rank 0 has dog"));
  CHECK(
      contains(settings_difference({settings({}, {.training_list = "1", .validation_list = "2"}),
                                    settings({}, {.training_list = "3", .validation_list = "4"})}),
               "a list of training images with the checksum 3 where rank 0 has 1, "
               "a list of validation images with the checksum 4 where rank 0 has 2"));
  CHECK(contains(settings_difference({settings({}, {.validation_preparation = "cut"}),
                                      settings({}, {.validation_preparation = "whole"})}),
                 "validation images prepared as whole where rank 0 has cut"));
  CHECK(contains(settings_difference({settings({}, {.mean = {0.5f, 0.25f}}), settings({})}),
                 "--mean none where rank 0 has 0.5,0.25"));
  CHECK(contains(settings_difference(
                     {settings({}, {.model = "a", .image = "3x32x32", .validation_images = 5}),
                      settings({}, {.model = "b", .image = "3x28x28", .validation_images = 6})}),
                 "rank 1 has images of 3x28x28 where rank 0 has 3x32x32, a number of validation "
                 "images of 6 where rank 0 has 5, --model b where rank 0 has a; "));
  CHECK(contains(
      settings_difference(
          {settings({}, {.preparation = "cut", .deviation = {0.5f}}), settings({})}),
      "rank 1 has images prepared as  where rank 0 has cut, --std none where rank 0 has 0.5; "));
}

TEST_CASE("a difference names the rank and both values", "[settings]") {
  const std::string plain = settings({});
  const std::string other = settings({"--batch-size", "32", "--ema", "0.9"});
  CHECK(settings_difference({plain}).empty());
  CHECK(settings_difference({plain, plain, plain}).empty());
  CHECK(
      settings_difference({plain, plain, other}) ==
      "the workers were started with different settings: rank 2 has --batch-size 32 where rank 0 "
      "has 64, --ema 0.9 where rank 0 has none; start all of them with the same options and data");
  CHECK(contains(settings_difference({plain, other, plain, other}),
                 "(another rank differs from rank 0 too)"));
  CHECK(contains(settings_difference({plain, other, other, other}),
                 "(2 other ranks differ from rank 0 too)"));
}

TEST_CASE("many differences are counted, and another version's settings do not confuse",
          "[settings]") {
  const std::string many = settings_difference(
      {"a\t1\nb\t1\nc\t1\nd\t1\ne\t1\nf\t1\n", "a\t2\nb\t2\nc\t2\nd\t2\ne\t2\nf\t2\n"});
  CHECK(contains(many, "a 2 where rank 0 has 1, b 2"));
  CHECK(contains(many, ", and 2 more differences"));
  CHECK(contains(settings_difference({"a\t1\n", "a\t1\nz\t5\n"}), "z 5 where rank 0 has none"));
  CHECK(contains(settings_difference({"a\t1\n", ""}), "a none where rank 0 has 1"));
}
