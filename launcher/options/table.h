// Every option of ddprun, as data: the parser, the help texts, docs/cli.md, the man page and the
// completions of shells are made from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

enum class OptionGroup {
  Job,
  Hosts,
  Endpoint,
  Program,
  Failures,
  Output,
  Compatibility,
  Help,
  Refused
};

struct OptionRow {
  std::string name;      // With dashes, without the leading two. Underscores mean the same.
  char letter;           // Its short form, or 0.
  std::string value;     // What its value is called; "" = a flag. Words in capitals are
                         // placeholders (FILE, FOLDER and HOST are completed by shells), others
                         // are typed as they stand: "N|auto|cpu".
  std::string fallback;  // The default, as shown to the user.
  OptionGroup group;
  bool in_torchrun;     // Its abbreviations win over those of options that only ddprun has.
  std::string meaning;  // One or two sentences. Refused: the reason, and what to do instead.

  bool is_flag() const { return value.empty(); }
  bool repeats() const { return name == "export" || name == "ssh-options"; }
  // The variable that sets it when the command line does not; "" for what starts no job.
  std::string variable() const;
  std::string signature() const;             // "-t, --tee STD"
  std::vector<std::string> choices() const;  // Values that are words to type, not placeholders.
};

const std::vector<OptionRow>& option_table();
const OptionRow& option_row(std::string_view name);
const std::vector<OptionGroup>& option_groups();  // In the order of the help.
std::string group_title(OptionGroup group);

}  // namespace ddprun::launcher
