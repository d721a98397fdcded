// See options.h.
#include "trainer/options.h"

#include <iostream>
#include <limits>

#include "trainer/options_parts.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t epochs_by_default = 90;
constexpr int usage_exit_code = 2;

// A file may say what the command line does not: `lr = 0.1` for --lr 0.1, `no-validation = true`
// for a flag, `name = [1, 2]` for a list.
void add_config_option(CLI::App& app) {
  app.set_config("-c,--config", "", "Read options from this TOML file; the command line wins")
      ->type_name("FILE")
      ->check(CLI::ExistingFile.description(""));
  app.allow_config_extras(CLI::config_extras_mode::error);
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
  add_config_option(app);
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
  check_data_options(options);
  check_model_options(options);
  check_training_options(options);
  check_output_options(options);
  check_checkpoint_options(options);
  check_device_options(options);
}

}  // namespace ddprun::trainer
