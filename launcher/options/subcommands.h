// First words of the command line that are no program: `ddprun env`. A core: no sockets, threads or
// clock.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::launcher {

struct SubcommandRow {
  std::string name;
  std::string usage;      // What follows the name: "[options]"
  bool own_words;         // It reads what stands behind it by itself, and is never a program.
  std::size_t words_max;  // Else: words behind it that may be no options, as the name of a job.
  std::string meaning;    // One or two sentences.
};

const std::vector<SubcommandRow>& subcommand_table();

// Why the words ask for a subcommand and not for a program of that name, which env(1) is: the name
// is the first word, and what follows are options of ddprun, and at most `words_max` other words.
// Null: they ask for a program, as all do that stand behind "--" or have a folder.
const SubcommandRow* find_subcommand(const std::vector<std::string>& arguments);

// The subcommand that a word which is no program was probably meant to be, or "".
std::string meant_subcommand(const std::string& word);

}  // namespace ddprun::launcher
