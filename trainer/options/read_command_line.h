// The command line of `train` for its main, which knows who is to hear of a wrong one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trainer/options/train_options.h"

namespace ddprun::trainer {

struct CommandLine {
  std::optional<TrainOptions> options;  // Nothing: the program ends ...
  int exit_code = 0;                    // ... with 0 after --help and its like, or with 2 ...
  std::string problem = {};             // ... of which this tells. Nobody has been told yet.
};

// Reads one command line after the other. Making the table of the options is nearly all of the time
// that reading a command line takes, so whoever reads many, as a fuzzer, keeps one reader.
class CommandLineReader {
 public:
  CommandLineReader();
  ~CommandLineReader();

  // What an earlier one said is forgotten. `version`: what --version prints.
  CommandLine read(int argc, const char* const* argv, const std::string& version);

 private:
  struct Table;
  std::unique_ptr<Table> table_;
};

CommandLine read_command_line(int argc, const char* const* argv, const std::string& version);

// What -h prints: one screen.
std::string short_help();

}  // namespace ddprun::trainer
