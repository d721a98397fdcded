// argparse's habits as a walk over the words; what each option means is not known here.
#include "launcher/options/arguments.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "command_line/nearest.h"
#include "launcher/options/help.h"
#include "launcher/options/table.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// As argparse: something that looks like an option is no value, a negative number is.
bool looks_like_option(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  // argparse, too, takes a word with a blank for a value.
  if (word.substr(0, word.find('=')).find(' ') != word.npos) return false;
  return !rendezvous::parse_number<double>(word);
}

// What other launchers call the number of workers: mpirun's -n and -np, DeepSpeed's and
// accelerate's names.
bool means_workers(const std::string& name) {
  constexpr const char* names[] = {"n", "np", "nprocs", "num-procs", "num-processes", "num-gpus"};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr const char* workers_hint = ": the workers on this node are --nproc-per-node N";

// Options that have the name as their second word or a later one: --restart is no start of
// --max-restarts, but may well be meant for it.
std::vector<std::string> names_with_word(const std::string& name) {
  constexpr std::size_t letters_min = 5;
  std::vector<std::string> names;
  for (const OptionRow& row : option_table()) {
    const bool is_word = name.size() >= letters_min;  // Of fewer letters too many words begin so.
    if (is_word && row.name.find('-' + name) != row.name.npos) names.push_back(row.name);
  }
  return names;
}

class Splitter {
 public:
  explicit Splitter(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  SplitArguments split() {
    while (next_ < arguments_.size()) {
      const std::string& word = arguments_[next_];
      if (word == "--") {
        ++next_;
        break;
      }
      if (!looks_like_option(word)) break;
      ++next_;
      if (word[1] == '-') {
        read_long(word);
      } else {
        read_letters(word);
      }
    }
    result_.program.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(next_),
                           arguments_.end());
    return std::move(result_);
  }

 private:
  void read_long(const std::string& word) {
    const std::size_t equals = word.find('=');
    const std::string name = with_dashes(word.substr(2, equals - 2));
    const OptionRow& row = find_long(name, word);
    if (!row.is_flag()) {
      set(row, equals == word.npos ? next_value(word) : word.substr(equals + 1));
    } else if (equals == word.npos) {
      set(row, "1");
    } else {
      throw usage_error("--" + row.name + " is a switch and takes no value, but was given as " +
                        word);
    }
  }

  // "-r 3", "-r3", "-r=3", and switches together as in "-mr3".
  void read_letters(const std::string& word) {
    for (std::size_t i = 1; i < word.size(); ++i) {
      if (word[i] == 'h') throw UsageExit(0, short_help());
      const auto& table = option_table();
      const auto row = std::find_if(table.begin(), table.end(), [&](const OptionRow& candidate) {
        return candidate.letter == word[i];
      });
      if (row == table.end()) {
        if (means_workers(word.substr(1)))
          throw usage_error("unknown option " + word + workers_hint);
        throw usage_error("unknown option " + word +
                          "; the program's own options come after the program");
      }
      if (row->is_flag()) {
        set(*row, "1");
        continue;
      }
      std::string rest = word.substr(i + 1);
      if (!rest.empty() && rest[0] == '=') rest.erase(0, 1);
      set(*row, i + 1 == word.size() ? next_value(word) : rest);
      return;
    }
  }

  std::string next_value(const std::string& word) {
    if (next_ == arguments_.size()) {
      throw usage_error(word + " needs a value, but nothing follows it");
    }
    const std::string& value = arguments_[next_];
    if (looks_like_option(value)) {
      throw usage_error(word + " needs a value, but " + value + " follows it; write " + word + "=" +
                        value + " if that is the value");
    }
    ++next_;
    return value;
  }

  // An option by its name or the start of it.
  static const OptionRow& find_long(const std::string& name, const std::string& word) {
    std::vector<const OptionRow*> matches;
    for (const OptionRow& row : option_table()) {
      if (row.name == name) return row;
      if (!name.empty() && row.name.compare(0, name.size(), name) == 0) matches.push_back(&row);
    }
    if (matches.size() > 1) {
      // What was unambiguous in torchrun stays so.
      const auto is_new = [](const OptionRow* row) { return !row->in_torchrun; };
      if (std::count_if(matches.begin(), matches.end(), is_new) + 1 ==
          static_cast<std::ptrdiff_t>(matches.size())) {
        matches.erase(std::remove_if(matches.begin(), matches.end(), is_new), matches.end());
      }
    }
    if (matches.size() == 1) return *matches[0];
    const std::vector<std::string> others = names_with_word(name);
    std::vector<std::string> names;
    for (const OptionRow* row : matches) names.push_back(row->name);
    if (!names.empty()) {
      names.insert(names.end(), others.begin(), others.end());
      throw usage_error(word + " is ambiguous: it could be " + command_line::listed_options(names));
    }
    if (means_workers(name)) throw usage_error("unknown option " + word + workers_hint);
    for (const OptionRow& row : option_table()) names.push_back(row.name);
    const std::string guess = others.empty() ? command_line::nearest(name, names) : others.front();
    throw usage_error("unknown option " + word +
                      (guess.empty() ? "; the program's own options come after the program"
                                     : ", did you mean --" + guess + "?"));
  }

  void set(const OptionRow& row, const std::string& value) {
    if (row.name == "help") throw UsageExit(0, full_help());
    if (row.name == "version") throw UsageExit(0, version_text());
    if (row.group == OptionGroup::Refused) {
      throw usage_error("--" + row.name + " is not supported: " + row.meaning);
    }
    GivenOption& given = result_.options[row.name];
    const bool again = row.repeats() && !given.value.empty();
    given = {again ? given.value + given_again + value : value,
             "--" + row.name + (row.is_flag() ? "" : "=" + value)};
  }

  const std::vector<std::string>& arguments_;
  std::size_t next_ = 0;
  SplitArguments result_;
};

}  // namespace

bool is_variable_of_option(const GivenOption& given) { return given.source.starts_with("PET_"); }

const GivenOption* SplitArguments::find(const std::string& name) const {
  const auto found = options.find(option_row(name).name);
  return found == options.end() ? nullptr : &found->second;
}

SplitArguments split_arguments(const std::vector<std::string>& arguments) {
  return Splitter(arguments).split();
}

void add_variables(SplitArguments& split, const EnvironmentLookup& environment) {
  for (const OptionRow& row : option_table()) {
    const std::string variable = row.variable();
    if (variable.empty() || split.options.count(row.name) != 0) continue;
    const auto value = environment(variable);
    if (!value) continue;
    const std::string source = variable + "=" + *value;
    if (!row.is_flag()) {
      GivenOption& given = split.options[row.name] = {*value, source};
      // A variable cannot say in another way that there are several.
      if (row.repeats()) std::replace(given.value.begin(), given.value.end(), '\n', given_again);
      continue;
    }
    const auto number = rendezvous::parse_number<int>(*value);
    if (!number) throw usage_error(source + ": expected 0 (off) or 1 (on)");
    split.options[row.name] = {*number == 0 ? "0" : "1", source};
  }
}

UsageExit usage_error(const std::string& problem) {
  return UsageExit(2, "ddprun: error: " + problem + "\nddprun -h shows the options.");
}

}  // namespace ddprun::launcher
