// The words behind `ddprun status`, top, logs and stacks, which look at jobs and start none.
//
// Only the very first word of a command line is one of these: behind an option, or behind --, the
// same word is a program's name, as ./status always is. A core: words in, values out.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

struct WatchCommand {
  enum class Kind { Status, Top, Logs, Stacks };
  Kind kind = Kind::Status;
  bool json = false;
  bool follow = false;
  std::optional<int> rank;   // This one alone.
  std::optional<int> lines;  // The last ones.
  std::chrono::milliseconds interval{1'000};
  std::string job;  // "" = all of this user's; with an endpoint: the --rdzv-id.

  std::string endpoint_host;  // "" = jobs of this host.
  std::uint16_t endpoint_port = 0;
  std::string secret_file;  // "" = the usual one.
  std::string auth;         // "secret", "none"; "" = by the endpoint.
};

struct WatchOptionRow {
  const char* name;   // "rank"
  char letter;        // Or 0.
  const char* value;  // "" = a switch.
  const char* meaning;
};
struct WatchCommandRow {
  WatchCommand::Kind kind;
  const char* name;
  const char* meaning;
  std::vector<WatchOptionRow> options;
};
// For the parser, the help, the man page and completions.
const std::vector<WatchCommandRow>& watch_table();

bool is_watch_command(const std::string& word);

// What -h of one of them prints.
std::string watch_help(const WatchCommandRow& command);

// `words` begins with the command. Throws UsageExit (launcher/options/launch_options.h).
WatchCommand parse_watch_command(const std::vector<std::string>& words);

}  // namespace ddprun::launcher
