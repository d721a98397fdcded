// A table and one loop: these commands have a handful of options, none with torchrun's habits.
#include "launcher/watch/watch_command.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstring>

#include "command_line/wrapped.h"
#include "launcher/options/launch_options.h"
#include "launcher/options/values.h"
#include "rendezvous/parse_number.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t watch_help_columns = 80;
constexpr double interval_least_s = 0.1;
constexpr double interval_most_s = 3600;
constexpr std::uint16_t usual_port = 29'500;  // Of --master-port and --rdzv-endpoint.

UsageExit watch_usage(const std::string& command, const std::string& problem) {
  return UsageExit(
      2, fmt::format("ddprun {0}: error: {1}\nddprun {0} -h shows the options.", command, problem));
}

class WatchParser {
 public:
  explicit WatchParser(const std::vector<std::string>& words) : words_(words) {
    // One is found: whoever has not asked is_watch_command() runs a program of that name.
    for (const WatchCommandRow& row : watch_table()) {
      if (words.at(0) == row.name) row_ = &row;
    }
    result_.kind = row_->kind;
  }

  WatchCommand parse() {
    bool options = true;
    for (next_ = 1; next_ < words_.size();) {
      const std::string& word = words_[next_++];
      if (options && word == "--") {
        options = false;
      } else if (options && word.size() > 1 && word[0] == '-') {
        read_option(word);
      } else if (word.empty() || !result_.job.empty()) {
        throw error(fmt::format("one JOB at most is expected, but '{}' follows", word));
      } else {
        result_.job = word;
      }
    }
    if (result_.endpoint_host.empty() && !(result_.secret_file + result_.auth).empty()) {
      throw error("--secret-file and --auth are for --endpoint");
    }
    if (result_.follow && !result_.endpoint_host.empty()) {
      throw error("-f follows files of this host; with --endpoint give --lines");
    }
    return result_;
  }

 private:
  UsageExit error(const std::string& problem) const { return watch_usage(row_->name, problem); }

  void read_option(const std::string& word) {
    if (word == "-h" || word == "--help") throw UsageExit(0, watch_help(*row_));
    const bool is_long = word[1] == '-';
    const std::size_t equals = word.find('=');
    for (const WatchOptionRow& option : row_->options) {
      const bool same =
          is_long ? word.substr(2, equals == word.npos ? word.npos : equals - 2) == option.name
                  : word[1] == option.letter;
      if (!same) continue;
      const std::string joined =
          is_long ? (equals == word.npos ? "" : word.substr(equals + 1)) : word.substr(2);
      const bool has_joined = is_long ? equals != word.npos : word.size() > 2;
      if (*option.value == '\0') {
        if (has_joined)
          throw error(fmt::format("--{} is a switch and takes no value", option.name));
        return set(option, "");
      }
      if (has_joined) return set(option, joined);
      if (next_ == words_.size()) {
        throw error(fmt::format("{} needs a value, but nothing follows it", word));
      }
      return set(option, words_[next_++]);
    }
    throw error("unknown option " + word);
  }

  void set(const WatchOptionRow& option, const std::string& value) {
    const std::string name = option.name;
    if (name == "json") result_.json = true;
    if (name == "follow") result_.follow = true;
    if (name == "rank") result_.rank = number(name, value);
    if (name == "lines") result_.lines = number(name, value);
    if (name == "interval") result_.interval = seconds(name, value);
    if (name == "secret-file") result_.secret_file = value;
    if (name == "auth") set_auth(value);
    if (name == "endpoint") set_endpoint(value);
  }

  void set_auth(const std::string& value) {
    if (value != "secret" && value != "none") {
      throw error(fmt::format("--auth={}: expected secret or none", value));
    }
    result_.auth = value;
  }

  void set_endpoint(const std::string& value) {
    try {
      const HostPort place = parse_endpoint({value, "--endpoint=" + value});
      result_.endpoint_host = place.host;
      result_.endpoint_port = place.port.value_or(usual_port);
    } catch (const UsageExit&) {
      throw error(fmt::format(
          "--endpoint={}: expected HOST, HOST:PORT or [IPv6]:PORT, for example node0:29500",
          value));
    }
  }

  int number(const std::string& name, const std::string& text) const {
    const auto value = rendezvous::parse_number<int>(text);
    if (!value || *value < 0) {
      throw error(fmt::format("--{}={}: expected a whole number from 0", name, text));
    }
    return *value;
  }

  std::chrono::milliseconds seconds(const std::string& name, const std::string& text) const {
    const auto value = rendezvous::parse_number<double>(text);
    if (!value || !(*value >= interval_least_s) || *value > interval_most_s) {
      throw error(fmt::format("--{}={}: expected seconds, from {} to {}", name, text,
                              interval_least_s, interval_most_s));
    }
    return std::chrono::milliseconds(std::lround(*value * 1e3));
  }

  const std::vector<std::string>& words_;
  const WatchCommandRow* row_ = nullptr;
  std::size_t next_ = 1;
  WatchCommand result_;
};

}  // namespace

const std::vector<WatchCommandRow>& watch_table() {
  using Kind = WatchCommand::Kind;
  static const auto with_endpoint = [](std::vector<WatchOptionRow> options) {
    options.push_back(
        {"endpoint", 0, "HOST",
         "A job on other hosts: asks its coordinator there, where the nodes meet (29500 unless "
         "given). JOB is then its --rdzv-id; none unless given."});
    options.push_back(
        {"secret-file", 0, "FILE", "With --endpoint: the job's secret, as for a node."});
    options.push_back({"auth", 0, "WORD",
                       "With --endpoint: secret, or none for a job without one, which tells only "
                       "who is on its coordinator's machine."});
    return options;
  };
  static const std::vector<WatchCommandRow> table = {
      {Kind::Status, "status",
       "Where your jobs on this host stand: attempt, ranks, their steps, memory and processor "
       "time, "
       "the slowest, failures so far.",
       with_endpoint(
           {{"json", 0, "", "As a JSON array, an object for each launcher (docs/watching.md)."}})},
      {Kind::Top, "top",
       "The same, live. q quits, arrows scroll, s shows the stacks. Into a pipe or a file: plain "
       "text, again and again until the job ends.",
       with_endpoint({{"interval", 'i', "SECONDS", "Between two looks; 1 unless given."}})},
      {Kind::Logs, "logs",
       "What the ranks have written, from the log files of --tee or --redirects.",
       with_endpoint({{"follow", 'f', "",
                       "Also what they write from now on, over restarts, until the job ends."},
                      {"rank", 0, "N", "Of this rank alone."},
                      {"lines", 'n', "N",
                       "The last N lines of each file; 10 with -f unless given, else all."}})},
      {Kind::Stacks, "stacks",
       "Where each rank is just now: the stack, as py-spy tells it of Python, and what each thread "
       "waits for in the kernel.",
       with_endpoint({{"rank", 0, "N", "Of this rank alone."}})}};
  return table;
}

bool is_watch_command(const std::string& word) {
  for (const WatchCommandRow& row : watch_table()) {
    if (word == row.name) return true;
  }
  return false;
}

std::string watch_help(const WatchCommandRow& command) {
  std::string text = fmt::format("usage: ddprun {} [options] [JOB]\n\n", command.name);
  text += command_line::wrapped(command.meaning, 0, watch_help_columns);
  text += "\n" + command_line::wrapped(
                     "JOB is a launcher's pid, a --rdzv-id or a program's name. Without it: all of "
                     "yours. Only the first word of a command line is a command: to run a program "
                     "of that name write ddprun -- " +
                         std::string(command.name) + ".",
                     0, watch_help_columns);
  text += "\n";
  for (const WatchOptionRow& option : command.options) {
    std::string head = option.letter == 0 ? "" : fmt::format("-{}, ", option.letter);
    head += fmt::format("--{}", option.name);
    if (*option.value != '\0') head += fmt::format(" {}", option.value);
    text +=
        fmt::format("  {}\n{}", head, command_line::wrapped(option.meaning, 8, watch_help_columns));
  }
  text += "\n" + command_line::wrapped(
                     "Exit status: 0; 1: no such job, or nothing of it to show; 2: wrong command "
                     "line; 70: it cannot go on; 73: it does not tell us.",
                     0, watch_help_columns);
  text.pop_back();  // Whoever shows it ends the last line.
  return text;
}

WatchCommand parse_watch_command(const std::vector<std::string>& words) {
  return WatchParser(words).parse();
}

}  // namespace ddprun::launcher
