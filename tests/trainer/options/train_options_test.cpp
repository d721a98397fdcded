// The command line of `train`.
#include "trainer/options/train_options.h"

#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/testing/catch.h"
#include "tests/trainer/options/parse_options.h"
#include "tests/trainer/scratch.h"
#include "trainer/data/sets/memory_dataset.h"
#include "trainer/open_dataset.h"
#include "trainer/options/foreign_names.h"
#include "trainer/options/help.h"
#include "trainer/options/read_command_line.h"

using namespace ddprun::trainer;

namespace {

// What is wrong with a command line.
std::string said(const std::vector<const char*>& arguments) {
  const CommandLine read = parse(arguments);
  CHECK(read.exit_code == 2);
  return read.problem;
}

// What goes to standard output.
std::string printed(const std::vector<const char*>& arguments) {
  std::ostringstream text;
  std::streambuf* const before = std::cout.rdbuf(text.rdbuf());
  const CommandLine parsed = parse(arguments);
  std::cout.rdbuf(before);
  CHECK(parsed.exit_code == 0);
  CHECK_FALSE(parsed.options);
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("14.23: options may be written with underscores, as for ddprun", "[trainer][options]") {
  const auto options = parse({"--batch_size", "7", "--print_freq=3", "--data=my_data_set"}).options;
  REQUIRE(options);
  CHECK(options->batch_size == 7);
  CHECK(options->print_freq == 3);
  CHECK(options->data == "my_data_set");  // A value stays as it is.
  CHECK(parse({"--local_rank=1", "--no_validation"}).options->init.local_rank == 1);
  CHECK(parse({"--batch__size", "7"}).exit_code == 2);
}

TEST_CASE("17.1: the start of an option will do when it fits one", "[trainer][options]") {
  CHECK(parse({"--batch", "7"}).options->batch_size == 7);
  CHECK(parse({"--weight_d=0.5"}).options->weight_decay == 0.5);
  CHECK(parse({"--lr", "0.5"}).options->learning_rate.base == 0.5);  // Though others begin so.
  CHECK(contains(said({"--lr-s", "3"}), "--lr-s is ambiguous: it could be --lr-schedule"));
  CHECK(contains(said({"--batchsize", "3"}),
                 "unknown option --batchsize, did you mean --batch-size?"));
  CHECK(said({"--quite-something-else"}).find("did you mean") == std::string::npos);
  CHECK(contains(said({"3"}), "what is 3 for?"));
  CHECK(parse({"--", "x"}).exit_code == 2);
}

TEST_CASE("17.1: the words of other trainers are answered with ours", "[trainer][options]") {
  CHECK(
      contains(said({"--learning_rate", "1"}), "unknown option --learning-rate: it is --lr here"));
  CHECK(contains(said({"--amp"}), "unknown option --amp: it is --precision bf16 here"));
  const std::string help = printed({"--help"});
  for (const ForeignName& foreign : foreign_names) {
    const std::string option = "--" + std::string(foreign.elsewhere);
    CHECK(contains(said({option.c_str()}), option + ": it is --" + std::string(foreign.here)));
    const std::string_view name = foreign.here.substr(0, foreign.here.find(' '));
    CHECK(contains(help, "\n  --" + std::string(name)));
  }
}

TEST_CASE("17.1: -h is one screen, --help is all in lines of any width", "[trainer][options]") {
  const auto brief = lines_of(printed({"-h"}));
  CHECK(brief.size() <= 23);
  for (const std::string& line : brief) CHECK(line.size() <= 80);
  CHECK(contains(printed({"--epochs", "3", "--help"}), "\n  --accumulate INT"));
  CHECK(contains(printed({"--hel"}), "--version"));
  CHECK(printed({"--version"}) == "train\n");

  CLI::App app{"What it does, in a sentence.", "train"};
  app.set_help_flag();
  int number = 3;
  app.add_option("-n,--number", number, "A number of words that are to be kept whole")
      ->type_name("one|two|three|four|five|six|seven|eight")
      ->capture_default_str();
  for (const std::size_t columns : {40U, 64U, 100U}) {
    const std::string text = full_help(app, columns);
    INFO(text);
    for (const std::string& line : lines_of(text)) CHECK(line.size() <= columns);
    for (const char* word : {"sentence.", "-n, --number", "seven", "eight", "whole", "(3)"}) {
      CHECK(contains(text, word));
    }
  }
}

TEST_CASE("14.24: GPUs are chosen by a list of different numbers", "[trainer][options]") {
  CHECK(parse({"--gpu-ids", "2,0"}).options->gpu_ids == std::vector<int>{2, 0});
  for (const char* wrong : {"", "a", "0,", "1,1", "-1", "0;1", "99999999999"}) {
    CHECK(parse({"--gpu-ids", wrong}).exit_code == 2);
  }
  CHECK(parse({"--gpu-ids", "1", "--device", "cpu"}).exit_code == 2);
}

TEST_CASE("option --share-gpu goes with GPUs, one for each worker", "[trainer][options]") {
  CHECK_FALSE(parse({}).options->share_gpu);
  CHECK(parse({"--share-gpu", "--gpu-ids", "1"}).options->share_gpu);
  CHECK(parse({"--share-gpu", "--device", "cpu"}).exit_code == 2);
  CHECK(parse({"--share-gpu", "--data-parallel", "2"}).exit_code == 2);
}

TEST_CASE("14.10: --max-time takes seconds or a number with a unit", "[trainer][options]") {
  CHECK(parse({"--max-time", "90"}).options->max_time_s == 90);
  CHECK(parse({"--max-time", "45m"}).options->max_time_s == 45 * 60);
  CHECK(parse({"--max-time", "2h"}).options->max_time_s == 2 * 3600);
  CHECK(parse({"--max-time", "1d"}).options->max_time_s == 24 * 3600);
  for (const char* wrong : {"", "0", "-5", "1w", "2hm", "h", "1.5h"}) {
    CHECK(parse({"--max-time", wrong}).exit_code == 2);
  }
}

TEST_CASE("an unknown word is refused with those that are known", "[trainer][options]") {
  const std::string message = said({"--precision", "int8"});
  CHECK(contains(message, "--precision: 'int8' is none of bf16|fp16|fp32"));
  CHECK(contains(said({"--precision", "1"}), "'1' is none of"));
  CHECK(parse({"--precision", "bf16"}).options->precision == PrecisionOption::Bf16);
}

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
  CHECK(options->augment_by_default);
  CHECK_FALSE(options->skip_bad_images);
  CHECK(options->collective_timeout_s == 600);
}

TEST_CASE("convolutions take the faster way unless the direct one is asked for",
          "[trainer][options]") {
  CHECK(parse({}).options->convolution == ConvolutionOption::Auto);
  CHECK(parse({"--conv-algorithm", "direct"}).options->convolution == ConvolutionOption::Direct);
  CHECK(contains(said({"--conv-algorithm", "fft"}), "'fft' is none of auto|direct"));
}

TEST_CASE("what speeds a GPU up has its switches", "[trainer][options]") {
  const auto plain = parse({}).options;
  CHECK_FALSE(plain->cudnn_benchmark);
  CHECK(plain->tf32 == Tf32Option::Auto);
  CHECK_FALSE(plain->resident_data);
  CHECK_FALSE(plain->cuda_graph);
  CHECK_FALSE(plain->cudnn_deterministic);
  const auto given =
      parse({"--no-cudnn-benchmark", "--tf32", "off", "--fused-optimizer", "--resident-data"})
          .options;
  CHECK(given->cudnn_benchmark == false);
  CHECK(parse({"--no-cudnn-benchmark", "--cudnn-benchmark"}).options->cudnn_benchmark == true);
  CHECK(given->tf32 == Tf32Option::Off);
  CHECK(given->fused_optimizer == true);
  CHECK(given->resident_data);
  CHECK_FALSE(parse({"--resident-data", "--no-resident-data"}).options->resident_data);
  CHECK(contains(said({"--fused-optimizer", "--optimizer", "lars"}), "--fused-optimizer and"));
  CHECK(contains(said({"--fused-norm", "--sync-bn"}), "--fused-norm and --sync-bn contradict"));
  CHECK(contains(said({"--fused-norm", "--memory-format", "nchw"}), "channels-last alone"));
  CHECK(contains(said({"--fused-pool", "--memory-format", "nchw"}), "--fused-pool has kernels"));
  CHECK(parse({"--cudnn-deterministic"}).options->cudnn_deterministic);
}

TEST_CASE("what stands behind a switch is true, false or refused", "[trainer][options]") {
  CHECK(parse({"--fused-pool=off"}).options->fused_pool == false);
  CHECK(parse({"--no-fused-pool"}).options->fused_pool == false);
  CHECK(parse({"--no-fused-pool", "--fused-pool"}).options->fused_pool == true);
  for (const std::string name : {"fused-pool", "no-fused-pool", "cudnn-benchmark", "resident-data",
                                 "no-overlap", "evaluate"}) {
    for (const std::string value : {"x", "maybe", "99999999999999999999"}) {
      const bool is_huge = value.size() > 10;
      INFO(name << ' ' << value);
      const std::string word = "--" + name + "=" + value;
      const int code = parse({word.c_str()}).exit_code;
      CHECK((code == 2 || is_huge));  // Some take a number of any size for true.
    }
  }
  CHECK(contains(said({"--fused-pool=x"}), "--fused-pool"));
  // From some version of CLI11 on (2.4 is one) this is true, as any number above 0.
  const char* const huge = "--fused-pool=99999999999999999999";
  if (parse({huge}).exit_code != 0) CHECK(contains(said({huge}), "the value of a switch"));
}

TEST_CASE("working copies are of one GPU's weights, in 16 bits", "[trainer][options]") {
  CHECK(contains(said({"--working-copies"}), "give --precision bf16 or fp16"));
  CHECK(contains(said({"--working-copies", "--precision", "fp16", "--data-parallel", "2"}),
                 "--working-copies and --data-parallel contradict"));
}

TEST_CASE("batches travel as bytes where they travel at all", "[trainer][options]") {
  CHECK_FALSE(parse({}).options->device_normalize);
  CHECK(parse({"--device-normalize"}).options->device_normalize);
  CHECK_FALSE(parse({"--device-normalize", "--no-device-normalize"}).options->device_normalize);
  CHECK(contains(said({"--device-normalize", "--resident-data"}),
                 "--device-normalize has no meaning with --resident-data"));
}

TEST_CASE("JPEG files are decoded on the device where there are files", "[trainer][options]") {
  CHECK_FALSE(parse({}).options->device_jpeg);
  CHECK(parse({"--device-jpeg", "--dataset", "imagefolder", "--data", "x"}).options->device_jpeg);
  CHECK(parse({"--device-jpeg", "--dataset", "csv", "--data", "x", "--no-validation"})
            .options->device_jpeg);
  CHECK_FALSE(parse({"--device-jpeg", "--no-device-jpeg"}).options->device_jpeg);
  CHECK(contains(said({"--device-jpeg", "--dataset", "cifar10"}),
                 "--device-jpeg is for --dataset imagefolder and csv"));
}

TEST_CASE("a graph is refused with what the host decides in each step", "[trainer][options]") {
  const auto with_graph = [](std::vector<const char*> more) {
    more.push_back("--cuda-graph");
    return more;
  };
  CHECK(parse(with_graph({})).options->cuda_graph);
  CHECK_FALSE(parse({"--cuda-graph", "--no-cuda-graph"}).options->cuda_graph);
  CHECK(contains(said({"--cuda-graph", "--no-fused-optimizer"}),
                 "--cuda-graph and --no-fused-optimizer contradict"));
  CHECK(contains(said({"--cuda-graph", "--optimizer", "lars"}), "--cuda-graph and --optimizer"));
  CHECK(contains(said(with_graph({"--data-parallel", "2"})), "one GPU a worker"));
  CHECK(contains(said(with_graph({"--shards", "2"})), "--cuda-graph and --shards"));
  CHECK(contains(said(with_graph({"--profile", "folder"})), "--cuda-graph and --profile"));
  for (const auto* other : {"--clip-grad-norm", "--ema"}) {
    CHECK(parse(with_graph({other, "0.5", "--precision", "bf16"})).options);
    CHECK(contains(said(with_graph({other, "0.5", "--precision", "fp16"})),
                   "allows neither --clip-grad-norm nor --ema"));
  }
}

TEST_CASE("the time that one exchange may take is set in seconds", "[trainer][options]") {
  CHECK(parse({"--collective-timeout", "20"}).options->collective_timeout_s == 20);
  for (const char* wrong : {"0", "-1", "1.5", "ten", "9999999"}) {
    CHECK(parse({"--collective-timeout", wrong}).exit_code == 2);
  }
}

TEST_CASE("augmentations are a list of words", "[trainer][options]") {
  const auto options = parse({"--augment", "random-resized-crop,flip", "--crop-scale", "0.25,1",
                              "--mean", "0.5,0.25,0.1", "--std", "1,1,2", "--on-bad-image", "skip"})
                           .options;
  REQUIRE(options);
  CHECK(options->augment.random_resized_crop);
  CHECK(options->augment.flip);
  CHECK_FALSE(options->augment.pad_crop);
  CHECK_FALSE(options->augment_by_default);
  CHECK(options->augment.scale_min == 0.25);
  CHECK(options->mean == std::vector<float>{0.5F, 0.25F, 0.1F});
  CHECK(options->skip_bad_images);
  CHECK_FALSE(parse({"--augment", "none"}).options->augment_by_default);
  CHECK(parse({"--augment", "auto"}).options->augment_by_default);

  CHECK(parse({"--augment", "mirror"}).exit_code == 2);
  CHECK(parse({"--augment", "flip,none"}).exit_code == 2);
  CHECK(parse({"--augment", ""}).exit_code == 2);
  CHECK(parse({"--augment", "pad-crop,random-resized-crop"}).exit_code == 2);
  CHECK(parse({"--crop-scale", "0,1"}).exit_code == 2);
  CHECK(parse({"--crop-scale", "0.5"}).exit_code == 2);
  CHECK(contains(said({"--crop-scale", "0.1,0.5,0.9"}), "needs two numbers, MIN,MAX"));
  CHECK(contains(said({"--crop-ratio", "0.5,x"}), "needs two numbers, MIN,MAX"));
  CHECK(parse({"--augment", "random-resized-crop", "--crop-scale", "0,1", "--crop-scale", "0.5,1"})
            .options->augment.scale_min == 0.5);
  CHECK(parse({"--crop-ratio", "2,1"}).exit_code == 2);
  CHECK(parse({"--mean", "0.5"}).exit_code == 2);
  CHECK(parse({"--mean", "0.5", "--std", "0"}).exit_code == 2);
  const auto last =
      parse({"--mean", "0.1,0.2,0.3", "--std", "1,1,1", "--mean", "0.5,0.25,0.1", "--std", "1,1,2"})
          .options;
  REQUIRE(last);
  CHECK(last->mean == std::vector<float>{0.5F, 0.25F, 0.1F});
  CHECK(last->deviation == std::vector<float>{1, 1, 2});
  for (const char* wrong : {"", "0.5,", "0.5,x,0.5", "nan,1,1", "inf"}) {
    CHECK(contains(said({"--mean", wrong, "--std", "1,1,1"}), "--mean"));
    CHECK(contains(said({"--mean", wrong, "--std", "1,1,1"}), "needs a number for each channel"));
  }
  CHECK(parse({"--on-bad-image", "ignore"}).exit_code == 2);
  CHECK(parse({"--dataset", "csv", "--no-validation"}).exit_code == 2);
  CHECK(parse({"--dataset", "csv", "--data", "list.csv"}).exit_code == 2);
  CHECK(parse({"--validation-data", "x"}).exit_code == 2);
}

TEST_CASE("what would change nothing is refused", "[trainer][options]") {
  const char* const resized =
      "has no meaning with this --augment, which does no random-resized-crop";
  const char* const padded = "--crop-padding has no meaning with this --augment, which does no pad";
  // Of mnist nothing is usual.
  CHECK(parse({"--crop-scale", "0.5,1"}).exit_code == 2);
  CHECK(contains(said({"--crop-scale", "0.5,1"}), std::string("--crop-scale ") + resized));
  CHECK(contains(said({"--crop-ratio", "0.5,2"}), std::string("--crop-ratio ") + resized));
  CHECK(contains(said({"--crop-padding", "2"}), padded));
  CHECK(contains(said({"--dataset", "cifar10", "--crop-scale", "0.5,1"}), resized));
  CHECK(contains(said({"--dataset", "imagefolder", "--crop-padding", "2"}), padded));
  CHECK(contains(said({"--dataset", "imagefolder", "--augment", "none", "--crop-ratio", "1,2"}),
                 resized));
  CHECK(
      parse({"--dataset", "imagefolder", "--crop-scale", "0.5,1", "--crop-ratio", "1,2"}).options);
  CHECK(parse({"--dataset", "cifar10", "--crop-padding", "2"}).options);
  CHECK(parse({"--augment", "pad-crop", "--crop-padding", "2"}).options);
  // The command of a training, to which --evaluate was added.
  CHECK(parse({"--evaluate", "--weights", "w", "--crop-scale", "0.5,1", "--crop-padding", "2"})
            .options);

  CHECK(
      contains(said({"--synthetic-images", "64"}), "--synthetic-images has no meaning with this"));
  CHECK(contains(said({"--dataset", "cifar10", "--synthetic-classes", "10"}),
                 "--synthetic-classes has no meaning with this --dataset"));
  CHECK(parse({"--dataset", "synthetic", "--synthetic-images", "64", "--synthetic-classes", "10"})
            .options);
  CHECK(contains(said({"--evaluate", "--weights", "w", "--max-time", "1h"}),
                 "--max-time has no meaning with --evaluate"));
}

TEST_CASE("what is usual for a data set is done to its images", "[trainer][options]") {
  const auto transform = [](std::vector<const char*> arguments, ImageShape shape, bool train) {
    MemoryDataset::Contents contents{.shape = shape};
    for (std::int64_t c = 0; c < shape.channels; ++c) contents.normalization.mean.push_back(0);
    const MemoryDataset dataset(std::move(contents));
    const TrainOptions options = *parse(std::move(arguments)).options;
    return sample_options(options, dataset, image_size_of(options, dataset), train).transform;
  };
  CHECK(describe(transform({}, {1, 28, 28}, true)) == "28x28 pixels");
  CHECK(describe(transform({"--dataset", "stl10", "--image-size", "224"}, {3, 96, 96}, true)) ==
        "224x224 pixels");
  const auto cifar10 = transform({"--dataset", "cifar10"}, {3, 32, 32}, true);
  CHECK(describe(cifar10) == "32x32 pixels, random crop with 4 of padding, random flip");
  CHECK(describe(transform({"--dataset", "cifar10"}, {3, 32, 32}, false)) == "32x32 pixels");
  CHECK(describe(transform({"--dataset", "imagefolder"}, {3, 0, 0}, true)) ==
        "random resized crop to 224x224 (area 0.08 to 1), random flip");
  CHECK(describe(transform({"--dataset", "imagefolder"}, {3, 0, 0}, false)) ==
        "resized to 256, centre crop of 224");
  CHECK(describe(transform({"--dataset", "imagefolder", "--val-resize-size", "232"}, {3, 0, 0},
                           false)) == "resized to 232, centre crop of 224");
  CHECK(describe(transform({"--dataset", "imagefolder", "--augment", "flip"}, {3, 0, 0}, true)) ==
        "resized to 256, centre crop of 224, random flip");
  CHECK_THROWS_AS(transform({"--val-resize-size", "20"}, {1, 28, 28}, false), UsageError);
  CHECK_THROWS_AS(transform({"--mean", "0,0", "--std", "1,1"}, {1, 28, 28}, false), UsageError);
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

TEST_CASE("a list has no empty parts, whatever it lists", "[trainer][options]") {
  for (const char* list : {"flip,", ",flip", "flip,,pad-crop", ""}) {
    CHECK(parse({"--augment", list}).exit_code == 2);
  }
  for (const char* list : {"30,", ",30", "30,,60", ""}) {
    CHECK(parse({"--lr-milestones", list}).exit_code == 2);
  }
  for (const char* list : {"bn,", ",bn", "bn,,bias", ""}) {
    CHECK(parse({"--no-decay", list}).exit_code == 2);
  }
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
  CHECK(parse({"--keep-checkpoints", "5"}).exit_code == 2);
  CHECK(parse({"--keep-checkpoints", "5", "--checkpoint-dir", "d"}).options);
  CHECK(parse({"--resume", "/"}).exit_code == 2);
  CHECK(parse({"--weights", "/"}).exit_code == 2);
  CHECK(parse({"--weights", "w", "--resume", "file"}).exit_code == 2);
  CHECK(parse({"--evaluate"}).exit_code == 2);
  CHECK(contains(said({"--evaluate", "--weights", "w", "--new-head", "--checkpoint-dir", "d"}),
                 "a last layer that nobody has trained"));
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

TEST_CASE("17.1: a count that is none says what would be one", "[trainer][options]") {
  CHECK(contains(said({"--epochs", "-1"}), "--epochs: '-1' is not a whole number of at least 0"));
  CHECK(contains(said({"--batch-size", "x"}), "'x' is not a whole number of at least 1"));
  CHECK(contains(said({"--steps", "3000000000"}), "'3000000000' is more than 2147483647"));
}

TEST_CASE("a refusal names the options that contradict each other", "[trainer][options]") {
  TrainOptions options;
  options.batch_size = 4;
  options.global_batch_size = 8;

  const std::string message = message_of<UsageError>([&] { check_options(options); });

  CHECK(contains(message, "--batch-size"));
  CHECK(contains(message, "--global-batch-size"));
}

TEST_CASE("a file of options is read, the command line wins, and an unknown name is refused",
          "[trainer][options]") {
  const ScratchFolder folder;
  const std::string file = (folder / "job.toml").string();
  std::ofstream(file) << "model = \"resnet20\"\nlr = 0.25\nlr-milestones = [3, 5]\n"
                         "no-validation = true\naugment = \"random-resized-crop\"\n"
                         "crop-scale = [0.5, 0.75]\nno-decay = \"bn,bias\"\n";

  const auto options = parse({"-c", file.c_str(), "--lr", "0.5"}).options;
  REQUIRE(options);
  CHECK(options->model == "resnet20");
  CHECK(options->learning_rate.base == 0.5);
  CHECK(options->learning_rate.milestones == std::vector<std::int64_t>{3, 5});
  CHECK_FALSE(options->validation);
  REQUIRE(options->no_decay);
  CHECK(options->no_decay->batch_norm);
  CHECK(options->no_decay->bias);

  for (const char* name : {"lr-milestones", "lr", "augment", "checkpoint-dir", "no-validation"}) {
    for (const char* empty : {" = []\n", " = [ ]\n"}) {
      std::ofstream(file) << name << empty;
      CHECK(contains(said({"-c", file.c_str()}), name));
    }
  }

  std::ofstream(file) << "modle = \"resnet20\"\n";
  const std::string unknown = said({"-c", file.c_str()});
  CHECK(contains(unknown, file));
  CHECK(contains(unknown, ": modle, did you mean --model?: no option"));
  std::ofstream(file) << "[optimizer]\nlr = 0.1\n";
  CHECK(contains(said({"-c", file.c_str()}), "[optimizer]: it has no sections"));
  std::ofstream(file) << "\x1b[31m\n";
  CHECK_FALSE(contains(said({"-c", file.c_str()}), "\x1b"));
  CHECK(parse({"-c", (folder / "none").c_str()}).exit_code == 2);
}

TEST_CASE("overlap is open unless it is said", "[trainer][options]") {
  CHECK(parse({}).options->overlap);
  CHECK(parse({"--overlap"}).options->overlap);
  CHECK_FALSE(parse({"--no-overlap"}).options->overlap);
  const ScratchFolder folder;
  for (const bool value : {false, true}) {
    std::ofstream(folder / "job.toml") << "overlap = " << (value ? "true" : "false") << "\n";
    const std::string file = (folder / "job.toml").string();
    CHECK(parse({"-c", file.c_str()}).options->overlap == value);
  }
}

TEST_CASE("a reader of command lines forgets the one before", "[trainer][options]") {
  const ScratchFolder folder;
  const std::string file = (folder / "options.toml").string();
  std::ofstream(file) << "lr = 0.5\nno-validation = true\nlr-schedule = \"cosine\"\n";
  CommandLineReader reader;
  const auto read = [&](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "train");
    return reader.read(static_cast<int>(arguments.size()), arguments.data(), "version");
  };

  const auto full = read({"-c", file.c_str(), "--steps", "9", "--nesterov", "--data", "d"}).options;
  REQUIRE(full);
  CHECK(full->learning_rate.base == 0.5);
  CHECK(full->steps == 9);
  CHECK(read({"--steps", "many"}).exit_code == 2);
  CHECK(read({"--stepz"}).exit_code == 2);

  const auto plain = read({}).options;
  const auto fresh = parse({}).options;
  REQUIRE(plain);
  CHECK(plain->learning_rate.base == fresh->learning_rate.base);
  CHECK(plain->learning_rate.schedule == fresh->learning_rate.schedule);
  CHECK(plain->steps == fresh->steps);
  CHECK(plain->nesterov == fresh->nesterov);
  CHECK(plain->data == fresh->data);
  CHECK(plain->validation == fresh->validation);
}
