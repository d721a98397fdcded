// The script knows no option by name: what it offers comes from the tables, how it reads a line is
// written out here.
#include <fmt/format.h>

#include <set>

#include "command_line/completion_text.h"
#include "launcher/documents/completed_options.h"
#include "launcher/documents/completion.h"

namespace ddprun::launcher {
namespace {

std::vector<std::string> spellings(const OptionRow& row) {
  if (row.letter == 0) return {fmt::format("--{}", row.name)};
  return {fmt::format("--{}", row.name), fmt::format("-{}", row.letter)};
}

// The line of a case statement that says what to offer as an option's value; "" = nothing.
std::string bash_value(const OptionRow& row) {
  std::string action;
  switch (kind_of(row)) {
    case ValueKind::Nothing:
      return "";
    case ValueKind::Choices:
      action = fmt::format("offer=(-W '{}')", command_line::with_blanks(row.choices()));
      break;
    case ValueKind::File:
      action = "offer=(-f)";
      break;
    case ValueKind::Folder:
      action = "offer=(-d)";
      break;
    case ValueKind::Host:
      action = "offer=(-A hostname)";
      break;
  }
  const std::string letter = row.letter == 0 ? "" : fmt::format(" | -{}", row.letter);
  return fmt::format("  --{}{}) {} ;;\n", row.name, letter, action);
}

constexpr const char* bash_head =
    R"(# Completion of ddprun for bash. Made from the table of options; scripts/update_docs writes it.

# Sets `words` to what stands before the cursor, and `begins` to where each of them begins in
# COMP_WORDS. Bash takes words apart at "=" and ":".
_ddprun_words() {
  local i
  words=() begins=()
  for ((i = 1; i <= COMP_CWORD; i++)); do
    if ((i > 1)) && [[ ${COMP_WORDS[i]} == [=:]* || ${COMP_WORDS[i - 1]} == *[=:] ]]; then
      words[${#words[@]} - 1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}")
      begins+=("$i")
    fi
  done
}

# Sets `place` to what the last word is: an option or the program, the value of `option`, or an
# argument of the program, which is word `program`.
_ddprun_place() {
  local word
  place=option program=-1
  for word in "${words[@]:0:${#words[@]}-1}"; do
    ((program += 1))
    case $place,$word in
      value,*) place=option ;;
      program,*) place=argument && return ;;
      option,--) place=program ;;
      option,@SUBCOMMANDS@) ((program == 0)) || { place=argument && return; } ;;
      option,--*=*) ;;
      option,-?*)
        option=${word//_/-}
        # A switch, or an option with a value or the start of its name.
        [[ " ${switches[*]} " != *" $option "* && " ${valued[*]}" == *" $option"* ]] && place=value
        ;;
      *) place=argument && return ;;
    esac
  done
}
)";

constexpr const char* bash_tail = R"(  *) offer=() ;;
  esac
}

# Hands the line on to the completion of the program, from COMP_WORDS[$1] on, where it has one.
_ddprun_hand_on() {
  local name=${COMP_WORDS[$1]##*/} found
  complete -p "$name" &>/dev/null || ! declare -F _completion_loader >/dev/null ||
    _completion_loader "$name"
  found=$(complete -p "$name" 2>/dev/null)
  [[ $found == *' -F '* ]] || return 0
  found=${found#* -F }
  COMP_WORDS=("${COMP_WORDS[@]:$1}")
  ((COMP_CWORD -= $1))
  "${found%% *}" "$name" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
}

_ddprun() {
  local words begins program place option='' current joined_option='' offer=() switches valued
  local files=''
  _ddprun_options
  _ddprun_words
  current=${words[${#words[@]} - 1]}
  COMPREPLY=()
  if ((${#words[@]} > 1)) && _ddprun_command "${words[0]}"; then
    place=option program=0 option=${words[${#words[@]} - 2]}
    [[ ${#words[@]} -gt 2 && " ${valued[*]} " == *" $option "* ]] && place=value
    if [[ $place == option && $current != --*=* ]]; then
      [[ -n $files && $current != -* ]] && return  # Bash itself offers files.
      mapfile -t COMPREPLY < <(compgen -W "${offer[*]}" -- "$current")
      return
    fi
    offer=()
  else
    _ddprun_place
  fi
  if [[ $place == option && $current == --*=* ]]; then
    place=value option=${current%%=*} current=${current#*=}
    option=${option//_/-}
    # Where "=" does not end a word, the reply must hold the whole of it.
    [[ ${COMP_WORDS[COMP_CWORD]} == --*=* ]] && joined_option=$option=
  fi
  case $place in
    value)
      _ddprun_value
      if ((${#offer[@]} == 0)); then
        compopt +o default +o bashdefault  # No file names for a number.
        return
      fi
      [[ ${offer[0]} == -[fd] ]] && compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -P "$joined_option" "${offer[@]}" -- "$current")
      ;;
    option | program)
      if [[ $place == option && $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "-h ${switches[*]} ${valued[*]}" -- "${current//_/-}")
        return
      fi
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -f -- "$current"
        ((COMP_CWORD == 1)) && compgen -W '@SUBCOMMANDS@' -- "$current"
        [[ -n $current && $current != */* ]] && compgen -c -- "$current")
      ;;
    argument) _ddprun_hand_on "${begins[program]}" ;;
  esac
}

complete -o bashdefault -o default -F _ddprun ddprun ddprun-launch
)";

std::string with_subcommands(std::string text, const char* between) {
  const std::string mark = "@SUBCOMMANDS@";
  return text.replace(text.find(mark), mark.size(), subcommands(between));
}

// Of all options, and of those that commands alone have.
std::string bash_values() {
  std::string text;
  std::set<std::string> names;
  for (const OptionRow* row : completed_rows()) {
    names.insert(row->name);
    text += bash_value(*row);
  }
  for (const CommandOptions& command : commands_with_options()) {
    for (const WatchOptionRow& option : command.options) {
      if (names.insert(option.name).second) text += bash_value(row_of(option));
    }
  }
  return text;
}

// A function that sets `offer` to the options of a command, and fails for any other word.
std::string bash_commands() {
  std::string text =
      "# Sets `offer` to the options of the command $1, `valued` to those with a value, and\n"
      "# `files` where other words are files' names; fails where it is a program.\n"
      "_ddprun_command() {\n  case $1 in\n";
  for (const CommandOptions& command : commands_with_options()) {
    std::string options = "-h", valued;
    for (const WatchOptionRow& option : command.options) {
      std::string spelt = fmt::format("--{}", option.name);
      if (option.letter != 0 && option.letter != 'h') {
        spelt = fmt::format("-{} {}", option.letter, spelt);
      }
      options += " " + spelt;
      if (*option.value != '\0') valued += (valued.empty() ? "" : " ") + spelt;
    }
    const bool files = command.operand == CommandOptions::Operand::Files;
    text += fmt::format("    {})\n      offer=({}){}\n      valued=({})\n      ;;\n", command.name,
                        options, files ? " files=1" : "", valued);
  }
  return text + "    *) return 1 ;;\n  esac\n}\n\n";
}

}  // namespace

std::string bash_completion() {
  std::vector<std::string> switches, valued;
  for (const OptionRow* row : completed_rows()) {
    auto& list = row->is_flag() ? switches : valued;
    for (const std::string& name : spellings(*row)) list.push_back(name);
  }
  return with_subcommands(bash_head, " | option,") + "\n_ddprun_options() {\n  switches=(\n" +
         command_line::bash_array(switches) + "  )\n  valued=(\n" +
         command_line::bash_array(valued) + "  )\n}\n\n" + bash_commands() +
         "# Sets `offer` to what compgen is to offer for `option`.\n"
         "_ddprun_value() {\n  case $option in\n" +
         bash_values() + with_subcommands(bash_tail, " ");
}

}  // namespace ddprun::launcher
