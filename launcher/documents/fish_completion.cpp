// Lines for fish's complete, each with a condition on the place in the line; how the script finds
// the place is written out here.
#include <fmt/format.h>

#include "command_line/completion_text.h"
#include "launcher/documents/completed_options.h"
#include "launcher/documents/completion.h"

namespace ddprun::launcher {
namespace {

using command_line::fish_quoted;

constexpr const char* fish_head =
    R"(# Completion of ddprun for fish. Made from the table of options; scripts/update_docs writes it.

# Prints where the cursor is: "option" (or the program), the "value" of a --NAME, "command NAME", or
# "argument N" of the program, which is word N of the line.
function __ddprun_place
    set -l valued @VALUED@
    set -l switches @SWITCHES@
    set -l at 1
    set -l words (commandline -opc)
    set -l ended 0
    set -l value_of
    for word in $words[2..]
        set at (math $at + 1)
        if test -n "$value_of"
            set value_of
            continue
        end
        if test $ended = 0
            switch $word
                case --
                    set ended 1
                    continue
                case '--*=*'
                    continue
                case '-?*'
                    # A switch, or an option with a value or the start of its name.
                    set -l option (string replace -a _ - -- $word)
                    if contains -- $option $valued
                        set value_of $option
                    else if not contains -- $option $switches
                        set value_of (string match -- "$option*" $valued)[1]
                    end
                    continue
                case env
                    test $at = 2; and continue
                case @COMMANDS@
                    if test $at = 2
                        echo command $word
                        return
                    end
            end
        end
        echo argument $at
        return
    end
    if test -n "$value_of"
        echo value $value_of
    else
        echo option
    end
end

function __ddprun_at
    set -l place (__ddprun_place | string split ' ')
    test $place[1] = $argv[1]; and test (count $argv) = 1 -o "$place[2]" = "$argv[2]"
end

# Fish asks for an option also whether it can stand before its own value.
function __ddprun_has_options
    __ddprun_at option; or __ddprun_at value
end

# Of an option that is not written as fish knows it: with underscores, or the start of its name.
function __ddprun_value
    set -l place (__ddprun_place | string split ' ')
    complete -C "ddprun $place[2] "(commandline -ct)
end

# A program of PATH; fish itself offers files.
function __ddprun_programs
    commandline -ct | string length -q; and __fish_complete_command
end

# What the completion of the program offers behind it.
function __ddprun_argument
    set -l place (__ddprun_place | string split ' ')
    set -l words (commandline -opc)
    set -l program (string replace -r '.*/' '' -- $words[$place[2]])
    complete -C (string join ' ' -- (string escape -- $program $words[(math $place[2] + 1)..]) (commandline -ct))
end

complete -c ddprun-launch -w ddprun
complete -c ddprun -n '__ddprun_at argument' -f -a '(__ddprun_argument)'
complete -c ddprun -n '__ddprun_at value' -f -a '(__ddprun_value)'
complete -c ddprun -n '__ddprun_at option' -a '(__ddprun_programs)'
complete -c ddprun -n 'test (count (commandline -opc)) = 1' -a '@SUBCOMMANDS@' -d 'command of ddprun'
complete -c ddprun -n __ddprun_has_options -s h -d 'The most used options.'
)";

// What follows the name of an option with a value.
std::string fish_value(const OptionRow& row) {
  switch (kind_of(row)) {
    case ValueKind::Choices:
      return fmt::format(" -x -a '{}'", command_line::with_blanks(row.choices()));
    case ValueKind::File:
      return " -r -F";
    case ValueKind::Folder:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::Host:
      return " -x -a '(__fish_print_hostnames)'";
    case ValueKind::Nothing:
      break;
  }
  return " -x";
}

std::string fish_option(const OptionRow& row, const std::string& condition) {
  return fmt::format("complete -c ddprun -n {} -l {}{}{} -d '{}'\n", condition, row.name,
                     row.letter == 0 ? "" : fmt::format(" -s {}", row.letter),
                     row.is_flag() ? "" : fish_value(row), fish_quoted(row.meaning));
}

std::string fish_command(const CommandOptions& command) {
  const std::string condition = fmt::format("'__ddprun_at command {}'", command.name);
  std::string text;
  if (command.operand != CommandOptions::Operand::Files) {
    text += fmt::format("complete -c ddprun -n {} -f\n", condition);
  }
  for (const WatchOptionRow& option : command.options)
    text += fish_option(row_of(option), condition);
  return text;
}

void put(std::string& text, const std::string& mark, const std::string& words) {
  text.replace(text.find(mark), mark.size(), words);
}

}  // namespace

std::string fish_completion() {
  std::string switches = "-h", valued, commands, options;
  for (const OptionRow* row : completed_rows()) {
    std::string& list = row->is_flag() ? switches : valued;
    list += fmt::format("{}--{}", list.empty() ? "" : " ", row->name);
    if (row->letter != 0) list += fmt::format(" -{}", row->letter);
    options += fish_option(*row, "__ddprun_has_options");
  }
  for (const CommandOptions& command : commands_with_options()) {
    commands += (commands.empty() ? "" : " ") + command.name;
    options += fish_command(command);
  }
  std::string text = fish_head;
  put(text, "@VALUED@", valued);
  put(text, "@SWITCHES@", switches);
  put(text, "@COMMANDS@", commands);
  put(text, "@SUBCOMMANDS@", subcommands(" "));
  return text + options;
}

}  // namespace ddprun::launcher
