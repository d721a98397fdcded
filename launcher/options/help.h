// The texts about the options that ddprun itself prints, made from table.h. What stands in files is
// launcher/documents/.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

std::string short_help();    // -h: one screen of 24 lines and 80 columns.
std::string full_help();     // --help: examples, then every option by group; 80 columns.
std::string version_text();  // --version: with commit, kind of build and compiler.
std::string name_and_version();

// What the help and the man page begin with.
struct UsageExample {
  std::string command;
  std::string meaning;
  bool in_short_help;
};
std::string usage_line();
const std::vector<UsageExample>& usage_examples();
const std::vector<std::string>& usage_rules();  // A paragraph each.

}  // namespace ddprun::launcher
