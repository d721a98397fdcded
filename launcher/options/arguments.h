// The habits of Python's argparse that scripts for torchrun rely on: dashes or underscores,
// "--x=v" or "--x v", abbreviations. Pure.
//
// One habit is left out: nothing after the program is ever read as an option of ours. The layer is
// all the parser there is; a library below it would only carry names to values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// Where a value came from, for messages.
struct GivenOption {
  std::string value;   // "1" or "0" for a flag.
  std::string source;  // "--nnodes=2", "PET_NNODES=2"
};

// A variable that stands for an option, and not the command line.
bool is_variable_of_option(const GivenOption& given);

// No argument holds it, as a value may hold the end of a line.
inline constexpr char given_again = '\0';

struct SplitArguments {
  std::map<std::string, GivenOption> options;  // By the table's name. The last one given
                                               // counts, or all, with given_again between
                                               // them (repeats()).
  std::vector<std::string> program;            // The program and its arguments.

  // What was given for an option, or null.
  const GivenOption* find(const std::string& name) const;
};

// Throws UsageExit for anything that is not understood, and for -h, --help and --version.
SplitArguments split_arguments(const std::vector<std::string>& arguments);

// Adds what PET_* variables say about options that were not given.
void add_variables(SplitArguments& split, const EnvironmentLookup& environment);

// UsageExit with status 2: "ddprun: error: <problem>" and where to find help.
UsageExit usage_error(const std::string& problem);

}  // namespace ddprun::launcher
