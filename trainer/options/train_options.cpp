// One parser for command line and file of options; what contradicts itself is refused after both.
#include "trainer/options/train_options.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/options/help.h"
#include "trainer/options/options_file.h"
#include "trainer/options/parts.h"
#include "trainer/options/read_command_line.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t epochs_by_default = 90;

// Two of which one alone may be given, unless `other` has one of the values in `beside`.
struct Rivals {
  std::string_view one, other;
  std::array<std::string_view, 2> beside{};

  bool may_stand(std::string_view value_of_other) const {
    return std::find(beside.begin(), beside.end(), value_of_other) != beside.end();
  }
};

constexpr std::array<Rivals, 9> rivals{{{"batch-size", "global-batch-size"},
                                        {"no-validation", "validation-data"},
                                        {"no-validation", "val-resize-size"},
                                        {"warmup-steps", "warmup-epochs"},
                                        {"lr-step-epochs", "lr-milestones"},
                                        {"lr-step-epochs", "lr-schedule", {"step"}},
                                        {"lr-milestones", "lr-schedule", {"multistep"}},
                                        {"sync-bn", "shards"},
                                        {"weights", "resume", {"auto", "none"}}}};

// Those of which the first alone gives way. Whoever adds --no-validation to a file that says
// `evaluate` must not get a training.
constexpr std::array<Rivals, 8> yielding{{{"lr-gamma", "lr-schedule", {"step", "multistep"}},
                                          {"new-head", "resume", {"auto", "none"}},
                                          {"new-head", "evaluate"},
                                          {"no-validation", "evaluate"},
                                          {"max-time", "evaluate"},
                                          {"profile", "evaluate"},
                                          {"profile-steps", "evaluate"},
                                          {"profile-ops", "evaluate"}}};

// Lists as the options take them: [30, 60] is --lr-milestones 30,60.
class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(const CLI::App& app) : app_(app) { comment('\n'); }  // There are none left.

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::istringstream text(plain(input));
    std::vector<CLI::ConfigItem> found = CLI::ConfigTOML::from_config(text);
    for (CLI::ConfigItem& item : found) {
      std::replace(item.name.begin(), item.name.end(), '_', '-');  // As on the command line.
      if (item.inputs.size() > 1) item.inputs = {join_list(item.inputs)};
      if (item.inputs.empty() && item.name != "++" && item.name != "--") {  // A section's ends.
        throw CLI::ConfigError(item.fullname() + " is an empty list: leave its line out");
      }
    }
    refuse_second_names(found);
    // Where there is a folder with what was trained, or a new last layer above them, weights are
    // where a training begins, and nothing to evaluate.
    const bool begins_training =
        given("evaluate") &&
        (sets(found, "new-head") || sets(found, "checkpoint-dir") || given("checkpoint-dir"));
    std::erase_if(found, [&](const CLI::ConfigItem& item) {
      return gives_way(item) || (begins_training && item.name == "weights");
    });
    return found;
  }

  // `true` is the option without a number, where it need not have one: --verify-sync.
  std::string to_flag(const CLI::ConfigItem& item) const override {
    const std::string value = CLI::ConfigTOML::to_flag(item);
    return value == "true" ? "" : value;
  }

 private:
  static std::string plain(std::istream& input) {
    try {
      return plain_options(std::string(std::istreambuf_iterator<char>(input), {}));
    } catch (const UsageError& error) {
      throw CLI::ConfigError(error.what());
    }
  }

  // Of `overlap` and `no-overlap` CLI11 would take the first. The same name twice is known before.
  void refuse_second_names(const std::vector<CLI::ConfigItem>& found) const {
    std::map<const CLI::Option*, std::string> names;
    for (const CLI::ConfigItem& item : found) {
      const CLI::Option* const option = app_.get_option_no_throw("--" + item.name);
      if (option == nullptr) continue;
      const auto [first, is_new] = names.emplace(option, item.name);
      if (is_new || first->second == item.name) continue;
      throw CLI::ConfigError(first->second + " and " + item.name +
                             " set the same: leave one of the two out");
    }
  }

  // In the file; a flag that is false is not set.
  static bool sets(const std::vector<CLI::ConfigItem>& found, std::string_view name) {
    return std::any_of(found.begin(), found.end(), [&](const CLI::ConfigItem& item) {
      return item.name == name && (item.inputs.empty() || item.inputs.front() != "false");
    });
  }

  // The last value on the command line; nothing where the option is not there.
  std::optional<std::string> given(std::string_view name) const {
    const CLI::Option* const option = app_.get_option("--" + std::string(name));
    const std::vector<std::string> values = option->results();
    const bool is_flag = option->get_items_expected_max() == 0;
    if (values.empty() || (is_flag && values.back() == "false")) return std::nullopt;
    return values.back();
  }

  // The command line wins, also by an option that cannot stand beside this one.
  bool gives_way(const CLI::ConfigItem& item) const {
    const auto to_other = [&](const Rivals& pair) {
      if (item.name != pair.one) return false;
      const std::optional<std::string> other = given(pair.other);
      return other && !pair.may_stand(*other);
    };
    const auto to_one = [&](const Rivals& pair) {
      return item.name == pair.other && given(pair.one) &&
             !pair.may_stand(item.inputs.empty() ? "" : item.inputs.front());
    };
    return std::any_of(rivals.begin(), rivals.end(), to_other) ||
           std::any_of(rivals.begin(), rivals.end(), to_one) ||
           std::any_of(yielding.begin(), yielding.end(), to_other);
  }

  const CLI::App& app_;
};

// A file may say what the command line does not: `lr = 0.1` for --lr 0.1, `no-validation = true`
// for a flag, `lr-milestones = [30, 60]` for a list.
void add_config_option(CLI::App& app) {
  app.set_config("-c,--config", "", "Read options from this TOML file; the command line wins")
      ->type_name("FILE")
      ->check(CLI::ExistingFile.description(""));
  app.config_formatter(std::make_shared<ConfigFile>(app));
  app.allow_config_extras(CLI::config_extras_mode::error);
}

// How wide lines are: those of the terminal, but no wider than is read easily.
std::size_t help_columns() {
  constexpr std::size_t usual = 80, least = 40, most = 100;
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return usual;
  return size.ws_col == 0 ? usual : std::clamp<std::size_t>(size.ws_col, least, most);
}

// Whether it asks for a text, which is then printed. As argparse: wherever it stands.
bool asks_for_text(const CLI::App& app, const std::vector<std::string>& arguments,
                   const std::string& version) {
  for (const std::string& argument : arguments) {
    const std::string text = argument == "-h"          ? short_help()
                             : argument == "--help"    ? full_help(app, help_columns())
                             : argument == "--version" ? version
                                                       : "";
    if (text.empty()) continue;
    std::cout << text << std::endl;
    return true;
  }
  return false;
}

std::string config_file(const CLI::App& app) {
  std::string file;
  for (const std::string& name : app.get_config_ptr()->results()) file = name;
  return file;
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
  if (unknown && !section) what += suggestion(app, what);
  return "the file of options " + config_file(app) + ": " + what +
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

// Not by whether this process has a launcher that offers it, or the world can shrink: who is to
// give its state to whom is asked of all ranks, and one may have been started otherwise.
bool TrainOptions::recovers_in_place() const {
  if (evaluate) return false;
  if (recover != RecoverOption::Auto) return recover == RecoverOption::InPlace;
  return shards.has_value() && backend != BackendOption::Mpi;
}

void add_all_options(CLI::App& app, TrainOptions& options) {
  app.set_help_flag();                 // Which would be one for both -h and --help.
  app.option_defaults()->take_last();  // As argparse: a script's caller may override by appending.
  app.option_defaults()->group("Help");
  // What they print is found before the rest is read.
  app.add_flag_callback(
         "--help", [] {}, "Every option (-h: the most used ones)")
      ->configurable(false);
  app.add_flag_callback(
         "--version", [] {}, "Version, commit, and what it was built with")
      ->configurable(false);
  add_config_option(app);
  add_data_options(app, options);
  add_model_options(app, options);
  add_training_options(app, options);
  add_output_options(app, options);
  add_checkpoint_options(app, options);
  add_device_options(app, options);
  add_launch_options(app, options);
}

struct CommandLineReader::Table {
  TrainOptions options;
  CLI::App app{
      "Trains an image classifier with data parallelism. Run it alone, or for several "
      "workers under ddprun, torchrun, mpirun or srun, or by hand with --init-method.",
      "train"};
};

CommandLineReader::CommandLineReader() : table_(std::make_unique<Table>()) {
  add_all_options(table_->app, table_->options);
}

CommandLineReader::~CommandLineReader() = default;

CommandLine CommandLineReader::read(int argc, const char* const* argv, const std::string& version) {
  TrainOptions& options = table_->options;
  CLI::App& app = table_->app;  // Forgets by itself, in parse(); it has only references into ours.
  options = {};
  const auto refused = [](const std::string& problem) {
    return CommandLine{std::nullopt, usage_exit_code, problem};
  };
  // What is refused may stand in the file alone, and the command line be as it should.
  const auto refused_value = [&](const std::string& problem) {
    const std::string file = config_file(app);
    if (!CLI::ExistingFile(file).empty()) return refused(problem);
    return refused(problem + "\nOptions stand in the file " + file + ", too.");
  };
  const std::string more = "\ntrain -h shows the most used options, --help all of them.";
  try {
    std::vector<std::string> arguments =
        with_whole_names(app, {argv + std::min(argc, 1), argv + argc});
    if (asks_for_text(app, arguments, version)) return {std::nullopt, 0};
    std::reverse(arguments.begin(), arguments.end());  // As CLI11 wants them.
    app.parse(arguments);
    check_options(options);
  } catch (const CLI::ConfigError& error) {  // Names what no option takes, but not the file.
    return refused(config_problem(app, error));
  } catch (const CLI::ExtrasError& error) {
    const std::vector<std::string> left = app.remaining();
    if (left.empty()) return refused(error.what());
    return refused("what is " + left.front() + " for? Options begin with --" + more);
  } catch (const CLI::ParseError& error) {
    return refused_value(error.what() + more);
  } catch (const UsageError& error) {
    return refused_value(error.what());
  } catch (const std::logic_error&) {
    // std::stoll's, which CLI11 lets through: of --NAME=99999999999999999999 where NAME is a
    // switch.
    return refused_value("the value of a switch is no number, or too large: leave it out" + more);
  }
  options.data = data_path(options);
  return {options, 0};
}

CommandLine read_command_line(int argc, const char* const* argv, const std::string& version) {
  return CommandLineReader().read(argc, argv, version);
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
