// One parser for command line and file of options; what contradicts itself is refused after both.
#include "trainer/options/train_options.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/options/parts.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t epochs_by_default = 90;
constexpr int usage_exit_code = 2;

// Lists as the options take them: [30, 60] is --lr-milestones 30,60.
class ConfigFile : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> found = CLI::ConfigTOML::from_config(input);
    for (CLI::ConfigItem& item : found) {
      std::replace(item.name.begin(), item.name.end(), '_', '-');  // As on the command line.
      if (item.inputs.size() > 1) item.inputs = {join_list(item.inputs)};
    }
    return found;
  }
};

// A file may say what the command line does not: `lr = 0.1` for --lr 0.1, `no-validation = true`
// for a flag, `lr-milestones = [30, 60]` for a list.
void add_config_option(CLI::App& app) {
  app.set_config("-c,--config", "", "Read options from this TOML file; the command line wins")
      ->type_name("FILE")
      ->check(CLI::ExistingFile.description(""));
  app.config_formatter(std::make_shared<ConfigFile>());
  app.allow_config_extras(CLI::config_extras_mode::error);
}

// The arguments for CLI11, last one first, as it wants them. Options may be written with
// underscores, as torchrun's and ddprun's: --batch_size=32.
std::vector<std::string> with_dashes(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    std::string& argument = arguments.emplace_back(argv[i]);
    if (!argument.starts_with("--")) continue;
    const auto name_end = argument.begin() + static_cast<std::ptrdiff_t>(
                                                 std::min(argument.find('='), argument.size()));
    std::replace(argument.begin(), name_end, '_', '-');
  }
  return arguments;
}

// "train: " as in front of every other message, also among those of other programs of a job.
std::string failure_message(const CLI::App*, const CLI::Error& error) {
  return std::string("train: ") + error.what() + "\nRun with --help for more information.\n";
}

// What a file of options has that is none, without what a terminal would not show.
std::string config_problem(const CLI::App& app, const CLI::ConfigError& error) {
  constexpr std::string_view prefix = "INI was not able to parse ";
  constexpr std::string_view section_mark = ".++";
  std::string what = error.what();
  const bool unknown = what.starts_with(prefix);
  if (unknown) what.erase(0, prefix.size());
  const bool section = what.ends_with(section_mark);
  if (section) what = "[" + what.substr(0, what.size() - section_mark.size()) + "]";
  for (char& c : what) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  std::string file;
  for (const std::string& name : app.get_config_ptr()->results()) file = name;
  return "train: the file of options " + file + ": " + what +
         (section   ? ": it has no sections, all options stand at its top"
          : unknown ? ": no option has this name (train --help lists them; a file leaves out "
                      "their dashes in front)"
                    : "");
}

}  // namespace

std::int64_t TrainOptions::epochs_max() const {
  if (epochs) return *epochs;
  return steps ? std::numeric_limits<std::int64_t>::max() : epochs_by_default;
}

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  TrainOptions options;
  CLI::App app{
      "Trains an image classifier with data parallelism. Run it alone, or for several "
      "workers under ddprun, torchrun, mpirun or srun, or by hand with --init-method.",
      "train"};
  app.option_defaults()->take_last();  // As argparse: a script's caller may override by appending.
  app.failure_message(failure_message);
  add_config_option(app);
  add_data_options(app, options);
  add_model_options(app, options);
  add_training_options(app, options);
  add_output_options(app, options);
  add_checkpoint_options(app, options);
  add_device_options(app, options);
  add_launch_options(app, options);
  try {
    app.parse(with_dashes(argc, argv));
    check_options(options);
  } catch (const CLI::ConfigError& error) {  // Names what no option takes, but not the file.
    std::cerr << config_problem(app, error) << std::endl;
    return {std::nullopt, usage_exit_code};
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : usage_exit_code};
  } catch (const UsageError& error) {
    std::cerr << "train: " << error.what() << std::endl;
    return {std::nullopt, usage_exit_code};
  }
  options.data = data_path(options);
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
