// The command line of `train`.
#include "trainer/options.h"

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;

namespace {

ParsedCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

TEST_CASE("the defaults are those of PyTorch's ImageNet example", "[trainer][options]") {
  const auto options = parse({}).options;

  REQUIRE(options);
  CHECK(options->model == "resnet18");
  CHECK(options->epochs_max() == 90);
  CHECK(options->learning_rate.base == 0.1);
  CHECK(options->learning_rate.step_epochs == 30);
  CHECK(options->momentum == 0.9);
  CHECK(options->weight_decay == 1e-4);
  CHECK(options->data == "data/mnist");
  CHECK_FALSE(options->print_sample_order);
}

TEST_CASE("options are read under their fixed names", "[trainer][options]") {
  const auto options = parse({"--dataset",
                              "cifar10",
                              "--data",
                              "/d",
                              "--model",
                              "resnet50",
                              "--epochs",
                              "3",
                              "--steps",
                              "9",
                              "--global-batch-size",
                              "12",
                              "--lr",
                              "0.5",
                              "--momentum",
                              "0.8",
                              "--weight-decay",
                              "0.01",
                              "--seed",
                              "5",
                              "--workers",
                              "0",
                              "--print-freq",
                              "2",
                              "--checkpoint-dir",
                              "c",
                              "--checkpoint-every",
                              "7",
                              "--resume",
                              "none",
                              "--metrics",
                              "m",
                              "--device",
                              "cpu",
                              "--backend",
                              "cpu",
                              "--print-sample-order",
                              "4"})
                           .options;

  REQUIRE(options);
  CHECK(options->dataset == DatasetKind::Cifar10);
  CHECK(options->global_batch_size == 12);
  CHECK(options->steps == 9);
  CHECK(options->checkpoint_every == 7);
  CHECK(options->device == DeviceOption::Cpu);
  CHECK(options->print_sample_order == 4);
  CHECK(parse({"--print-sample-order"}).options->print_sample_order == 0);
}

TEST_CASE("of an option given twice the last counts", "[trainer][options]") {
  CHECK(parse({"--lr", "0.5", "--lr", "0.25"}).options->learning_rate.base == 0.25);
  CHECK(parse({"--device", "cpu", "--device", "cuda"}).options->device == DeviceOption::Cuda);
}

TEST_CASE("contradictory options end with code 2", "[trainer][options]") {
  CHECK(parse({"--batch-size", "4", "--global-batch-size", "8"}).exit_code == 2);
  CHECK(parse({"--device", "cpu", "--backend", "nccl"}).exit_code == 2);
  CHECK(parse({"--device", "cuda", "--backend", "cpu"}).exit_code == 2);
  CHECK(parse({"--dataset", "synthetic", "--data", "d"}).exit_code == 2);
  CHECK(parse({"--checkpoint-every", "5"}).exit_code == 2);
  CHECK(parse({"--weights", "w", "--resume", "file"}).exit_code == 2);
  CHECK(parse({"--evaluate"}).exit_code == 2);
  CHECK(parse({"--model", "convnet", "--stem", "small"}).exit_code == 2);
}

TEST_CASE("values out of range and unknown words end with code 2", "[trainer][options]") {
  CHECK(parse({"--batch-size", "0"}).exit_code == 2);
  CHECK(parse({"--batch-size", "x"}).exit_code == 2);
  CHECK(parse({"--lr", "-1"}).exit_code == 2);
  CHECK(parse({"--model", "resnet19"}).exit_code == 2);
  CHECK(parse({"--dataset", "imagenet"}).exit_code == 2);
  CHECK(parse({"--seed", "-1"}).exit_code == 2);
  CHECK(parse({"--no-such-option"}).exit_code == 2);
  CHECK(parse({"--help"}).exit_code == 0);
}

TEST_CASE("a refusal names the options that contradict each other", "[trainer][options]") {
  TrainOptions options;
  options.batch_size = 4;
  options.global_batch_size = 8;

  const std::string message = message_of<UsageError>([&] { check_options(options); });

  CHECK(contains(message, "--batch-size"));
  CHECK(contains(message, "--global-batch-size"));
}
