// See options.h.
#include "trainer/options.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <map>

namespace ddprun::trainer {
namespace {

constexpr std::int64_t epochs_by_default = 90;
constexpr int usage_exit_code = 2;
constexpr int threads_max = 64;
constexpr std::int64_t image_size_max = 1024;
constexpr std::int64_t count_max = std::numeric_limits<std::int32_t>::max();

// An option that takes one of some words.
template <typename Enum>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Enum& value,
                        const std::map<std::string, Enum>& words, const std::string& help) {
  std::string names;
  for (const auto& [word, meaning] : words) names += (names.empty() ? "" : "|") + word;
  return app.add_option(name, value, help)
      ->transform(CLI::CheckedTransformer(words).description(""))
      ->type_name(names)
      ->default_str(std::find_if(words.begin(), words.end(), [&](const auto& word) {
                      return word.second == value;
                    })->first);
}

template <typename Value>
CLI::Option* add_count(CLI::App& app, const std::string& name, Value& value, std::int64_t min,
                       std::int64_t max, const std::string& help) {
  return app.add_option(name, value, help)
      ->check(CLI::Range(min, max).description(""))
      ->capture_default_str();
}

void add_data_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Data");
  add_choice<DatasetKind>(app, "--dataset", options.dataset,
                          {{"mnist", DatasetKind::Mnist},
                           {"cifar10", DatasetKind::Cifar10},
                           {"synthetic", DatasetKind::Synthetic}},
                          "mnist, cifar10 or synthetic");
  app.add_option("--data", options.data, "Folder of the data files [data/<dataset>]");
  app.add_flag("--verify-data", options.verify_data, "Check the folder's SHA256SUMS first");
  add_count(app, "--image-size", options.image_size, 0, image_size_max,
            "Resize images to this side; synthetic: make them so [as the data has them; 32]");
  add_count(app, "--synthetic-images", options.synthetic_images, 1, count_max, "Images per pass");
  add_count(app, "--synthetic-classes", options.synthetic_classes, 1, 65'536, "Classes");
  add_count(app, "--workers", options.workers, 0, threads_max,
            "Threads that prepare batches ahead; 0: between the steps");
}

void add_model_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Model");
  app.add_option("--model", options.model, "resnet18/34/50/101/152, resnet20/32/44/56/110, convnet")
      ->check(CLI::IsMember(model_names()).description(""))
      ->capture_default_str();
  add_choice<StemChoice>(app, "--stem", options.stem,
                         {{"auto", StemChoice::Auto},
                          {"imagenet", StemChoice::ImageNet},
                          {"small", StemChoice::Small}},
                         "First layer of resnet18 to resnet152: imagenet (7x7, max-pool), small "
                         "(3x3), auto = small up to 64 pixels");
  app.add_option("--weights", options.weights, "Start from the weights of this safetensors file");
}

void add_training_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Training");
  add_count(app, "--epochs", options.epochs, 0, count_max, "Passes over the data [90]");
  add_count(app, "--steps", options.steps, 1, count_max, "End after so many optimizer steps");
  add_count(app, "--batch-size", options.batch_size, 1, count_max,
            "Images per step, per worker [64]");
  add_count(app, "--global-batch-size", options.global_batch_size, 1, count_max,
            "Images per step over all workers, instead of --batch-size");
  app.add_option("--lr", options.learning_rate.base, "Learning rate")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  add_choice<LearningRateSchedule>(
      app, "--lr-schedule", options.learning_rate.schedule,
      {{"step", LearningRateSchedule::Step}, {"cosine", LearningRateSchedule::Cosine}},
      "step: divided by 10 every --lr-step-epochs; cosine: to 0 at "
      "the last step");
  add_count(app, "--lr-step-epochs", options.learning_rate.step_epochs, 1, count_max,
            "Epochs between divisions of the learning rate");
  add_count(app, "--warmup-steps", options.learning_rate.warmup_steps, 0, count_max,
            "Steps over which the learning rate rises at first");
  app.add_option("--momentum", options.momentum, "SGD's momentum")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay, "SGD's weight decay")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of initial weights and sample order")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()).description(""))
      ->capture_default_str();
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Output");
  add_count(app, "--print-freq", options.print_freq, 1, count_max, "Steps between printed lines");
  app.add_flag_callback(
      "--no-validation", [&] { options.validation = false; }, "Do not validate after epochs");
  app.add_flag("--evaluate", options.evaluate, "Only validate the given weights or checkpoint");
  app.add_option("--metrics", options.metrics, "Append JSON lines to this file");
  app.add_option_function<std::vector<std::int64_t>>(
         "--print-sample-order",
         [&](const std::vector<std::int64_t>& epoch) {
           options.print_sample_order = epoch.empty() ? 0 : epoch.front();
         },
         "Print this rank's sample indices of an epoch [0], one a line, and exit")
      ->expected(0, 1)
      ->type_name("EPOCH")
      ->check(CLI::Range(std::int64_t{0}, count_max).description(""));
}

void add_checkpoint_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Checkpoints");
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "Save a checkpoint here after each epoch; the last two and the best stay");
  add_count(app, "--checkpoint-every", options.checkpoint_every, 1, count_max,
            "Save also every so many steps")
      ->default_str("");
  app.add_option("--resume", options.resume,
                 "auto: go on from the newest checkpoint of --checkpoint-dir, if any; none: start "
                 "anew; or a checkpoint file")
      ->type_name("auto|none|PATH")
      ->capture_default_str();
}

void add_device_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Device");
  add_choice<DeviceOption>(
      app, "--device", options.device,
      {{"auto", DeviceOption::Auto}, {"cpu", DeviceOption::Cpu}, {"cuda", DeviceOption::Cuda}},
      "auto, cpu or cuda; auto: cuda where it can be used");
  add_choice<BackendOption>(
      app, "--backend", options.backend,
      {{"auto", BackendOption::Auto}, {"cpu", BackendOption::Cpu}, {"nccl", BackendOption::Nccl}},
      "How workers exchange gradients: auto, cpu or nccl");
  add_choice<LayoutOption>(app, "--memory-format", options.layout,
                           {{"auto", LayoutOption::Auto},
                            {"nchw", LayoutOption::Nchw},
                            {"channels-last", LayoutOption::ChannelsLast}},
                           "Order of activations in memory: auto, nchw or channels-last");
}

}  // namespace

std::int64_t TrainOptions::epochs_max() const {
  if (epochs) return *epochs;
  return steps ? std::numeric_limits<std::int64_t>::max() : epochs_by_default;
}

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  TrainOptions options;
  CLI::App app{
      "Trains an image classifier with data parallelism. Run it alone, or under ddprun or "
      "torchrun for several workers.",
      "train"};
  app.option_defaults()->take_last();  // As argparse: a script's caller may override by appending.
  add_data_options(app, options);
  add_model_options(app, options);
  add_training_options(app, options);
  add_output_options(app, options);
  add_checkpoint_options(app, options);
  add_device_options(app, options);
  try {
    app.parse(argc, argv);
    check_options(options);
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : usage_exit_code};
  } catch (const UsageError& error) {
    std::cerr << "train: " << error.what() << std::endl;
    return {std::nullopt, usage_exit_code};
  }
  if (options.data.empty()) {
    options.data = options.dataset == DatasetKind::Cifar10 ? "data/cifar10" : "data/mnist";
  }
  return {options, 0};
}

void check_options(const TrainOptions& options) {
  const auto refuse_if = [](bool wrong, const char* message) {
    if (wrong) throw UsageError(message);
  };
  refuse_if(options.batch_size && options.global_batch_size,
            "--batch-size (per worker) and --global-batch-size (of all workers) contradict each "
            "other: give one");
  refuse_if(options.device == DeviceOption::Cpu && options.backend == BackendOption::Nccl,
            "--backend nccl needs GPUs, but --device cpu was given");
  refuse_if(options.device == DeviceOption::Cuda && options.backend == BackendOption::Cpu,
            "--backend cpu cannot reach the memory of --device cuda: use --backend nccl or auto");
  refuse_if(options.dataset == DatasetKind::Synthetic && !options.data.empty(),
            "--data has no meaning with --dataset synthetic, which reads no files");
  refuse_if(options.dataset == DatasetKind::Synthetic && options.verify_data,
            "--verify-data has no meaning with --dataset synthetic, which reads no files");
  refuse_if(options.checkpoint_every > 0 && options.checkpoint_dir.empty(),
            "--checkpoint-every needs --checkpoint-dir");
  refuse_if(!options.weights.empty() && options.resume != "auto" && options.resume != "none",
            "--weights and --resume PATH contradict each other: a checkpoint brings its weights");
  refuse_if(options.evaluate && options.weights.empty() && options.checkpoint_dir.empty() &&
                (options.resume == "auto" || options.resume == "none"),
            "--evaluate needs something to evaluate: --weights FILE, --resume PATH or "
            "--checkpoint-dir DIR");
  refuse_if(options.evaluate && !options.validation,
            "--evaluate and --no-validation contradict each other");
  refuse_if(options.stem != StemChoice::Auto && !has_stem_choice(options.model),
            "--stem applies to resnet18, 34, 50, 101 and 152 only");
}

}  // namespace ddprun::trainer
