// What every shell's completion offers: the options that can be given, those of each command, and
// what a value can be. From table.h and the commands' own tables.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/table.h"
#include "launcher/watch/watch_command.h"

namespace ddprun::launcher {

// What a shell can offer for a value.
enum class ValueKind { Nothing, Choices, File, Folder, Host };
ValueKind kind_of(const OptionRow& row);

// Options that can be given.
std::vector<const OptionRow*> completed_rows();

// Commands with options of their own.
struct CommandOptions {
  enum class Operand { None, Job, Files };
  std::string name;
  const std::vector<WatchOptionRow>& options;
  Operand operand = Operand::None;
};
std::vector<CommandOptions> commands_with_options();

// An option of a command as a row, for what both kinds have.
OptionRow row_of(const WatchOptionRow& option);

std::string subcommands(const char* between);

}  // namespace ddprun::launcher
