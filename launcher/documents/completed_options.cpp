// Rows and commands gathered from the tables of the launcher, its watch and its doctor.
#include "launcher/documents/completed_options.h"

#include "launcher/doctor/doctor_options.h"
#include "launcher/options/subcommands.h"

namespace ddprun::launcher {

ValueKind kind_of(const OptionRow& row) {
  if (!row.choices().empty()) return ValueKind::Choices;
  if (row.value.rfind("FILE", 0) == 0) return ValueKind::File;
  if (row.value.rfind("FOLDER", 0) == 0) return ValueKind::Folder;
  if (row.value.rfind("HOST", 0) == 0) return ValueKind::Host;
  return ValueKind::Nothing;
}

std::vector<const OptionRow*> completed_rows() {
  std::vector<const OptionRow*> result;
  for (const OptionRow& row : option_table()) {
    if (row.group != OptionGroup::Refused) result.push_back(&row);
  }
  return result;
}

namespace {

// Those of parse_plot() (launcher/plot_command.cpp), which are too few for a table there.
const std::vector<WatchOptionRow>& plot_options() {
  static const std::vector<WatchOptionRow> options = {
      {"output", 'o', "FILE", "The page; report.html unless given."},
      {"help", 'h', "", "What a run is, with examples."}};
  return options;
}

}  // namespace

std::vector<CommandOptions> commands_with_options() {
  std::vector<CommandOptions> all;
  for (const WatchCommandRow& command : watch_table()) {
    all.push_back({command.name, command.options, CommandOptions::Operand::Job});
  }
  all.push_back({"doctor", doctor_option_table()});
  all.push_back({"plot", plot_options(), CommandOptions::Operand::Files});
  return all;
}

OptionRow row_of(const WatchOptionRow& option) {
  return {.name = option.name,
          .letter = option.letter,
          .value = option.value,
          .fallback = "",
          .group = OptionGroup::Output,
          .in_torchrun = false,
          .meaning = option.meaning};
}

std::string subcommands(const char* between) {
  std::string text;
  for (const SubcommandRow& row : subcommand_table()) {
    text += (text.empty() ? "" : between) + row.name;
  }
  return text;
}

}  // namespace ddprun::launcher
