// CLI11's options as rows, and the four texts that are made of them.
#include "trainer/documents/train_documents.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "command_line/completion_text.h"
#include "command_line/man_text.h"
#include "trainer/options/parts.h"

namespace ddprun::trainer {
namespace {

struct Row {
  std::vector<std::string> names;  // "--config", "-c"
  std::string value;               // "" of a switch.
  std::string fallback;
  std::string meaning;
  std::string group;
};

std::vector<Row> rows_of_options() {
  TrainOptions options;
  CLI::App app;
  add_all_options(app, options);
  std::vector<Row> rows;
  for (const CLI::Option* option : app.get_options()) {
    Row row;
    for (const std::string& name : option->get_lnames()) row.names.push_back("--" + name);
    for (const std::string& letter : option->get_snames()) row.names.push_back("-" + letter);
    const bool is_switch = option->get_items_expected_max() == 0;
    if (!is_switch) row.value = option->get_type_name();
    if (!is_switch) row.fallback = option->get_default_str();
    row.meaning = option->get_description();
    row.group = option->get_group();
    rows.push_back(std::move(row));
  }
  return rows;
}

// The words that a value can be, where it is one of some.
std::vector<std::string> choices_of(const Row& row) {
  if (row.names.front() == "--model") return model_names();
  std::vector<std::string> words(1);
  for (const char letter : row.value) {
    if (letter == '|') {
      words.emplace_back();
    } else {
      words.back() += letter;
    }
  }
  // Capitals stand for something else: FILE, N.
  std::erase_if(words, [](const std::string& word) {
    return word.empty() || std::any_of(word.begin(), word.end(), [](unsigned char letter) {
             return std::isupper(letter) != 0;
           });
  });
  return words;
}

bool takes_files(const Row& row) {
  return row.value == "FILE" || row.value.find("PATH") != row.value.npos;
}

// What compgen is to offer.
std::string bash_offer(const Row& row) {
  std::string offer;
  if (const auto words = choices_of(row); !words.empty())
    offer = "-W '" + command_line::with_blanks(words) + "'";
  if (takes_files(row)) offer += offer.empty() ? "-f" : " -f";
  if (row.value == "DIR") offer = "-d";
  return offer;
}

std::string zsh_value(const Row& row) {
  if (row.value.empty()) return "";
  std::string action;
  if (row.value == "DIR") {
    action = "_files -/";
  } else if (const auto words = choices_of(row); !words.empty()) {
    action = "(" + command_line::with_blanks(words) + ")";
  } else if (takes_files(row)) {
    action = "_files";
  }
  return ":" + command_line::zsh_quoted(row.value) + ":" + action;
}

std::string fish_value(const Row& row) {
  if (row.value.empty()) return "";
  if (row.value == "DIR") return " -x -a '(__fish_complete_directories)'";
  const auto words = choices_of(row);
  const std::string choices = words.empty() ? "" : " -a '" + command_line::with_blanks(words) + "'";
  return (takes_files(row) ? " -r -F" : " -x") + choices;
}

constexpr const char* bash_tail = R"BASH(  esac
}

_train() {
  local switches valued option offer='' current=${COMP_WORDS[COMP_CWORD]} joined_option=''
  _train_options
  option=${COMP_WORDS[COMP_CWORD - 1]}
  # Bash takes words apart at "=", unless somebody has told it not to.
  if [[ $current == '=' ]]; then
    current=''
  elif [[ $option == '=' ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $current == --*=* ]]; then
    option=${current%%=*} current=${current#*=} joined_option=$option=
  fi
  option=${option//_/-}
  COMPREPLY=()
  # An option with a value, or the start of its name.
  if [[ $option == -* && " ${switches[*]} " != *" $option "* && " ${valued[*]}" == *" $option"* ]]; then
    if [[ " ${valued[*]} " != *" $option "* ]]; then
      option=$(compgen -W "${valued[*]}" -- "$option" | head -n 1)
    fi
    _train_value
    if [[ -z $offer ]]; then
      compopt +o default +o bashdefault  # No file names for a number.
      return
    fi
    [[ $offer == *-[fd] ]] && compopt -o filenames
    eval "mapfile -t COMPREPLY < <(compgen -P '$joined_option' $offer -- \"\$current\")"
  else
    compopt +o default +o bashdefault
    mapfile -t COMPREPLY < <(compgen -W "-h ${switches[*]} ${valued[*]}" -- "${current//_/-}")
  fi
}

complete -o bashdefault -o default -F _train train
)BASH";

}  // namespace

std::string train_bash_completion() {
  std::vector<std::string> switches, valued;
  std::string values;
  for (const Row& row : rows_of_options()) {
    auto& list = row.value.empty() ? switches : valued;
    list.insert(list.end(), row.names.begin(), row.names.end());
    const std::string offer = bash_offer(row);
    if (offer.empty() || row.value.empty()) continue;
    std::string names;
    for (const std::string& name : row.names) names += (names.empty() ? "" : " | ") + name;
    values += "    " + names + ") offer=\"" + offer + "\" ;;\n";
  }
  return "# Completion of train for bash. Made from its options; scripts/update_docs writes it.\n\n"
         "_train_options() {\n  switches=(\n" +
         command_line::bash_array(switches) + "  )\n  valued=(\n" +
         command_line::bash_array(valued) +
         "  )\n}\n\n# Sets `offer` to what compgen is to offer for `option`.\n"
         "_train_value() {\n  case $option in\n" +
         values + bash_tail;
}

std::string train_zsh_completion() {
  std::string text =
      "#compdef train\n"
      "# Completion of train for zsh. Made from its options; scripts/update_docs writes it.\n\n"
      "_arguments -s -S \\\n  '(- *)-h[The most used options.]'";
  for (const Row& row : rows_of_options()) {
    for (const std::string& name : row.names) {
      const bool is_long = name.starts_with("--");
      const std::string sign = row.value.empty() ? "" : is_long ? "=" : "+";
      text += " \\\n  '" + name + sign + "[" + command_line::zsh_quoted(row.meaning) + "]" +
              zsh_value(row) + "'";
    }
  }
  return text + "\n";
}

std::string train_fish_completion() {
  std::string text =
      "# Completion of train for fish. Made from its options; scripts/update_docs writes it.\n\n"
      "complete -c train -f\n"
      "complete -c train -s h -d 'The most used options.'\n";
  for (const Row& row : rows_of_options()) {
    text += "complete -c train";
    for (const std::string& name : row.names) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    text += fish_value(row) + " -d '" + command_line::fish_quoted(row.meaning) + "'\n";
  }
  return text;
}

std::string train_man_page() {
  using namespace command_line;
  std::string text = ".\\\" Made from the options of train; scripts/update_docs writes it.\n";
  text +=
      man_head("TRAIN", "2026-11-23", "ddprun") + man_section("NAME") +
      "train \\- train an image classifier with data parallelism\n" + man_section("SYNOPSIS") +
      man_bold("train") + " [" + man_italic("options") + "]\n.PP\n" + man_bold("ddprun") + " [" +
      man_italic("options of ddprun") + "] " + man_bold("train") + " [" + man_italic("options") +
      "]\n" + man_section("DESCRIPTION") +
      "Trains a ResNet or a small network on MNIST, CIFAR\\-10, STL\\-10, a folder or a list of\n"
      "images, alone or as the workers of a job under ddprun, torchrun, mpirun or srun.\n" +
      man_section("OPTIONS") +
      "Options may be written with dashes or underscores, as \\-\\-x=v or \\-\\-x v, and "
      "abbreviated;\nthe last one given counts.\n";
  text += man_item(man_bold("-h"), "The most used options.");
  std::string group;
  for (const Row& row : rows_of_options()) {
    if (row.group != group) text += ".SS " + man_escaped(row.group) + "\n";
    group = row.group;
    std::string head;
    for (const std::string& name : row.names) head += (head.empty() ? "" : ", ") + man_bold(name);
    if (!row.value.empty()) head += " " + man_italic(row.value);
    std::string meaning = man_escaped(row.meaning) + ".";
    if (!row.fallback.empty()) meaning += "\nDefault: " + man_escaped(row.fallback) + ".";
    text += man_item(head, meaning);
  }
  return text + man_section("EXIT STATUS") + man_item(man_bold("0"), "Trained to the end.") +
         man_item(man_bold("1"), "Training failed; the message says why.") +
         man_item(man_bold("2"), "What was given is wrong: an option, or the data.") +
         man_item(man_bold("75"),
                  "Stopped by SIGTERM, SIGUSR1 or \\-\\-max\\-time: queue it again.") +
         man_item(man_bold("129"), "Stopped by SIGHUP: its terminal or ssh session is lost.") +
         man_item(man_bold("130"), "Stopped by Ctrl\\-C.");
}

}  // namespace ddprun::trainer
