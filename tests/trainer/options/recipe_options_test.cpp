// The command line of `train`: the optimizer, its schedule, and what a step is.
#include "tests/testing/catch.h"
#include "tests/trainer/options/parse_options.h"

using namespace ddprun::trainer;

TEST_CASE("without options a step is plain SGD", "[trainer][options][recipe]") {
  const auto options = parse({}).options;

  REQUIRE(options);
  CHECK(options->optimizer == OptimizerKind::Sgd);
  CHECK_FALSE(options->nesterov);
  CHECK_FALSE(options->no_decay);
  CHECK_FALSE(options->clip_grad_norm);
  CHECK_FALSE(options->ema_decay);
  CHECK_FALSE(options->verify_sync);
  CHECK_FALSE(options->learning_rate.reference);
  CHECK(options->accumulate == 1);
  CHECK(options->label_smoothing == 0);
}

TEST_CASE("what has no weight decay is as the rule has it, unless it is said",
          "[trainer][options][recipe]") {
  const auto kinds = [](const std::vector<const char*>& arguments) {
    const DecayExclusion exclusion = decay_exclusion_of(*parse(arguments).options);
    return std::pair(exclusion.batch_norm, exclusion.bias);
  };
  CHECK(kinds({}) == std::pair(false, false));
  CHECK(kinds({"--optimizer", "lars"}) == std::pair(true, true));
  CHECK(kinds({"--optimizer", "lars", "--no-decay", "none"}) == std::pair(false, false));
  CHECK(kinds({"--no-decay", "bn"}) == std::pair(true, false));
}

TEST_CASE("the recipe's options are read under their names", "[trainer][options][recipe]") {
  const auto options = parse({"--model",
                              "resnet20",
                              "--optimizer",
                              "lars",
                              "--lars-trust",
                              "0.02",
                              "--nesterov",
                              "--no-decay",
                              "bn,bias",
                              "--lr-milestones",
                              "30,60,80",
                              "--lr-gamma",
                              "0.2",
                              "--warmup-epochs",
                              "5",
                              "--scale-lr",
                              "256",
                              "--label-smoothing",
                              "0.1",
                              "--zero-init-residual",
                              "--clip-grad-norm",
                              "2.5",
                              "--accumulate",
                              "4",
                              "--ema",
                              "0.999",
                              "--sync-bn",
                              "--verify-sync",
                              "50"})
                           .options;

  REQUIRE(options);
  CHECK(options->optimizer == OptimizerKind::Lars);
  CHECK(options->lars_trust == 0.02);
  CHECK(options->nesterov);
  REQUIRE(options->no_decay);
  CHECK(options->no_decay->batch_norm);
  CHECK(options->no_decay->bias);
  CHECK(options->learning_rate.milestones == std::vector<std::int64_t>{30, 60, 80});
  CHECK(options->learning_rate.gamma == 0.2);
  CHECK(options->learning_rate.warmup_epochs == 5);
  REQUIRE(options->learning_rate.reference);
  CHECK(options->learning_rate.reference->global_batch_size == 256);
  CHECK(options->label_smoothing == 0.1);
  CHECK(options->zero_init_residual);
  CHECK(options->clip_grad_norm == 2.5);
  CHECK(options->accumulate == 4);
  CHECK(options->ema_decay == 0.999);
  CHECK(options->sync_batch_norm);
  CHECK(options->verify_sync == 50);
}

TEST_CASE("values that may be left out have a meaning then", "[trainer][options][recipe]") {
  CHECK(parse({"--verify-sync"}).options->verify_sync == 0);
  CHECK(parse({"--scale-lr"}).options->learning_rate.reference->global_batch_size == 0);
  CHECK_FALSE(parse({"--no-decay", "none"}).options->no_decay->bias);
  CHECK(parse({"--no-decay", "bias"}).options->no_decay->bias);
  CHECK_FALSE(parse({"--no-decay", "bias"}).options->no_decay->batch_norm);
}

TEST_CASE("a recipe that contradicts itself ends with code 2", "[trainer][options][recipe]") {
  CHECK(parse({"--nesterov", "--momentum", "0"}).exit_code == 2);
  CHECK(parse({"--lr-schedule", "multistep"}).exit_code == 2);
  CHECK(parse({"--lr-schedule", "cosine", "--lr-milestones", "3"}).exit_code == 2);
  CHECK(parse({"--lr-schedule", "cosine", "--lr-gamma", "0.5"}).exit_code == 2);
  CHECK(parse({"--warmup-steps", "5", "--warmup-epochs", "1"}).exit_code == 2);
  CHECK(parse({"--lars-trust", "0.1"}).exit_code == 2);
  CHECK(parse({"--model", "convnet", "--sync-bn"}).exit_code == 2);
  CHECK(parse({"--model", "convnet", "--zero-init-residual"}).exit_code == 2);
}

TEST_CASE("16.3: a recovery in place is refused where a step cannot be done again",
          "[trainer][options][recipe]") {
  using Arguments = std::vector<const char*>;
  CHECK(parse({"--shards", "2", "--recover", "in-place"}).options->recovers_in_place());
  for (const Arguments& more : {Arguments{}, Arguments{"--shards", "2", "--backend", "mpi"}}) {
    Arguments all = {"--recover", "in-place"};
    all.insert(all.end(), more.begin(), more.end());
    CHECK(parse(all).exit_code == 2);
  }
  CHECK(parse({"--shards", "2", "--backend", "mpi"}).exit_code == 0);
  CHECK(parse({"--shards", "2", "--recover", "somehow"}).exit_code == 2);
}

TEST_CASE("16.3: a recovery is in place where nothing is said and a step can be done again",
          "[trainer][options][recipe]") {
  CHECK(parse({"--shards", "2"}).options->recovers_in_place());
  CHECK(parse({"--shards", "2", "--recover", "auto"}).options->recovers_in_place());
  CHECK(parse({"--shards", "2", "--device", "cuda"}).options->recovers_in_place());
  CHECK_FALSE(parse({"--shards", "2", "--recover", "restart"}).options->recovers_in_place());
  CHECK_FALSE(parse({"--shards", "2", "--backend", "mpi"}).options->recovers_in_place());
  CHECK_FALSE(parse({}).options->recovers_in_place());
  CHECK_FALSE(parse({"--recover", "auto"}).options->recovers_in_place());
}

TEST_CASE("gradients travel in one way", "[trainer][options][recipe]") {
  CHECK(parse({"--grad-dtype", "fp16"}).options->gradient_type == GradientType::Half);
  const auto thin = parse({"--power-sgd", "2", "--power-sgd-start", "0"}).options;
  REQUIRE(thin);
  CHECK(thin->power_sgd == 2);
  CHECK(thin->power_sgd_start == 0);
  CHECK_FALSE(parse({}).options->power_sgd);
  using Arguments = std::vector<const char*>;
  for (const Arguments& wrong :
       {Arguments{"--power-sgd", "0"}, Arguments{"--power-sgd", "1000"},
        Arguments{"--power-sgd-start", "5"}, Arguments{"--power-sgd", "2", "--grad-dtype", "bf16"},
        Arguments{"--power-sgd", "2", "--cuda-graph"},
        Arguments{"--power-sgd", "2", "--power-sgd-start", "-1"}}) {
    INFO(wrong[0] << " " << wrong[1]);
    CHECK(parse(wrong).exit_code == 2);
  }
}

TEST_CASE("values that no recipe can have end with code 2", "[trainer][options][recipe]") {
  for (const char* text : {"60,30", "30,30", "0", "x", "30,", ",", "1e3", ""}) {
    INFO("--lr-milestones " << text);
    CHECK(parse({"--lr-milestones", text}).exit_code == 2);
  }
  for (const char* text : {"bn,none", "all", "none,none", ""}) {
    INFO("--no-decay " << text);
    CHECK(parse({"--no-decay", text}).exit_code == 2);
  }
  CHECK(parse({"--clip-grad-norm", "0"}).exit_code == 2);
  CHECK(parse({"--clip-grad-norm", "nan"}).exit_code == 2);
  for (const char* name : {"--lr", "--momentum", "--weight-decay", "--lr-gamma", "--lars-trust",
                           "--label-smoothing", "--ema", "--clip-grad-norm"}) {
    INFO(name);
    CHECK(parse({name, "nan"}).exit_code == 2);
    CHECK(parse({name, "inf"}).exit_code == 2);
    CHECK(parse({name, "-1"}).exit_code == 2);
    CHECK(parse({name, ""}).exit_code == 2);
  }
  CHECK(parse({"--ema", "1"}).exit_code == 2);
  CHECK(parse({"--ema", "-0.1"}).exit_code == 2);
  CHECK(parse({"--accumulate", "0"}).exit_code == 2);
  CHECK(parse({"--label-smoothing", "1.5"}).exit_code == 2);
  CHECK(parse({"--verify-sync", "0"}).exit_code == 2);
  CHECK(parse({"--scale-lr", "0"}).exit_code == 2);
}
