// The table of subcommands, and which words ask for one.
#include "launcher/options/subcommands.h"

#include <algorithm>

#include "command_line/nearest.h"
#include "launcher/options/arguments.h"

namespace ddprun::launcher {

const std::vector<SubcommandRow>& subcommand_table() {
  static const std::vector<SubcommandRow> table = {
      {"env", "[options]", false, 0,
       "What a job started here would be: nodes, node rank, address and port, the option or "
       "variable "
       "of the cluster that each comes from, and what was not used and why."},
      {"doctor", "[-H HOST,...] [options]", true, 0,
       "What would keep a job from running here, or on these hosts: names, ports, interfaces, "
       "large messages, clocks, limits, drivers, bandwidth; red, amber or green, with what to do."},
      {"status", "[options] [JOB]", true, 0,
       "Where your jobs on this host stand: attempt, ranks, steps, memory, the slowest, failures."},
      {"top", "[options] [JOB]", true, 0, "The same, live; q quits, s shows stacks."},
      {"logs", "[options] [JOB]", true, 0,
       "What the ranks have written into log files, with -f also what follows."},
      {"stacks", "[options] [JOB]", true, 0, "Where each rank is just now."},
      {"plot", "RUN ...", true, 0,
       "A page of pictures of a run's metrics and events; ddprun plot --help tells more."},
  };
  return table;
}

const SubcommandRow* find_subcommand(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return nullptr;
  const auto& table = subcommand_table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const SubcommandRow& candidate) {
    return candidate.name == arguments[0];
  });
  if (row == table.end()) return nullptr;
  if (row->own_words) return &*row;
  const std::vector<std::string> behind(arguments.begin() + 1, arguments.end());
  try {
    return split_arguments(behind).program.size() <= row->words_max ? &*row : nullptr;
  } catch (const UsageExit&) {
    // A mistyped option of ours, which the subcommand will tell; env's own have one dash (env -i).
    return behind[0].rfind("--", 0) == 0 || behind[0] == "-h" ? &*row : nullptr;
  }
}

std::string meant_subcommand(const std::string& word) {
  std::vector<std::string> names;
  for (const SubcommandRow& row : subcommand_table()) names.push_back(row.name);
  const std::string guess = command_line::nearest(word, names);
  // Programs have short names as well: "foo" is no misspelt "top".
  return command_line::edit_distance(word, guess) <= word.size() / 3 ? guess : "";
}

}  // namespace ddprun::launcher
