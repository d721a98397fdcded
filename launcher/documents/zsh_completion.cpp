// Specifications for zsh's _arguments, which reads the line itself.
#include <fmt/format.h>

#include "command_line/completion_text.h"
#include "launcher/documents/completed_options.h"
#include "launcher/documents/completion.h"

namespace ddprun::launcher {
namespace {

std::string zsh_value(const OptionRow& row) {
  std::string action;
  switch (kind_of(row)) {
    case ValueKind::Choices:
      action = fmt::format("({})", command_line::with_blanks(row.choices()));
      break;
    case ValueKind::File:
      action = "_files";
      break;
    case ValueKind::Folder:
      action = "_files -/";
      break;
    case ValueKind::Host:
      action = "_hosts";
      break;
    case ValueKind::Nothing:
      break;
  }
  return fmt::format(":{}:{}", command_line::zsh_quoted(row.value), action);
}

std::string zsh_commands() {
  std::string text = "if ((CURRENT > 2)); then\n  case $words[2] in\n";
  for (const CommandOptions& command : commands_with_options()) {
    text += fmt::format("    {})\n      shift words\n      ((CURRENT -= 1))\n      _arguments -s",
                        command.name);
    const bool files = command.operand == CommandOptions::Operand::Files;
    for (const WatchOptionRow& option : command.options) {
      const std::string value = *option.value == '\0' ? "" : zsh_value(row_of(option));
      const std::string meaning = command_line::zsh_quoted(option.meaning);
      const std::string equals = value.empty() ? "" : "=";
      text += fmt::format(" \\\n        '--{}{}[{}]{}'", option.name, equals, meaning, value);
      if (option.letter != 0) {
        text += fmt::format(" \\\n        '-{}{}[{}]{}'", option.letter, value.empty() ? "" : "+",
                            meaning, value);
      }
    }
    if (command.operand == CommandOptions::Operand::Job) text += " \\\n        '1:job:'";
    if (files) text += " \\\n        '*:run:_files'";
    text += "\n      return\n      ;;\n";
  }
  // env takes what would start a job.
  return text + "    env)\n      shift words\n      ((CURRENT -= 1))\n      ;;\n  esac\nfi\n\n";
}

std::string zsh_option(const OptionRow& row) {
  const std::string meaning = command_line::zsh_quoted(row.meaning);
  if (row.group == OptionGroup::Help) return fmt::format("'(- *)--{}[{}]'", row.name, meaning);
  const std::string value = row.is_flag() ? "" : zsh_value(row);
  const std::string equals = row.is_flag() ? "" : "=", plus = row.is_flag() ? "" : "+";
  if (row.letter == 0) return fmt::format("'--{}{}[{}]{}'", row.name, equals, meaning, value);
  return fmt::format("'(-{0} --{1})'{{-{0}{2},--{1}{3}}}'[{4}]{5}'", row.letter, row.name, plus,
                     equals, meaning, value);
}

}  // namespace

std::string zsh_completion() {
  std::string text =
      std::string("#compdef ddprun ddprun-launch\n") +
      "# Completion of ddprun for zsh. Made from the table of options; scripts/update_docs writes "
      "it.\n\n"
      "_ddprun_program() {\n"
      "  _alternative 'files:file:_files' 'commands:command:_command_names -e' \\\n"
      "    'subcommands:subcommand:(" +
      subcommands(" ") +
      ")'\n"
      "}\n\n" +
      zsh_commands() +
      "_arguments -s -S \\\n"
      "  '(- *)-h[The most used options.]' \\\n";
  for (const OptionRow* row : completed_rows()) text += fmt::format("  {} \\\n", zsh_option(*row));
  return text +
         "  '(-)1:program:_ddprun_program' \\\n"
         "  '*::argument of the program:_normal'\n";
}

}  // namespace ddprun::launcher
