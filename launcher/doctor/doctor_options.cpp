// Hosts are read as those of a job are, by the same code; the rest is a handful.
#include "launcher/doctor/doctor_options.h"

#include <fmt/format.h>

#include "command_line/wrapped.h"
#include "launcher/options/arguments.h"
#include "launcher/options/hosts_options.h"
#include "launcher/options/values.h"

namespace ddprun::launcher {
namespace {

UsageExit doctor_error(const std::string& problem) {
  return UsageExit(2, "ddprun doctor: error: " + problem + "\nddprun doctor -h shows the options.");
}

bool is_asked_by(const WatchOptionRow& row, const std::string& word) {
  if (word.rfind("--", 0) != 0) return row.letter != 0 && word[1] == row.letter;
  return word.substr(2, word.find('=') - 2) == row.name;
}

const WatchOptionRow& row_of(const std::string& word) {
  for (const WatchOptionRow& row : doctor_option_table()) {
    if (is_asked_by(row, word)) return row;
  }
  throw doctor_error("unknown option " + word);
}

// Option -> value, as ddprun's own parser would have it.
SplitArguments split_doctor_words(const std::vector<std::string>& words) {
  SplitArguments split;
  for (std::size_t next = 0; next < words.size();) {
    std::string word = words[next++];
    if (word == "-h" || word == "--help") throw UsageExit(0, doctor_help());
    if (word.size() < 2 || word[0] != '-') {
      throw doctor_error(
          fmt::format("'{}' is no option; hosts are named with -H or --hostfile", word));
    }
    const bool is_long = word[1] == '-';
    for (char& c : word) {
      if (c == '=') break;
      if (is_long && c == '_') c = '-';
    }
    const WatchOptionRow& row = row_of(word);
    const std::size_t equals = word.find('=');
    std::string value =
        is_long ? (equals == word.npos ? "" : word.substr(equals + 1)) : word.substr(2);
    const bool has_value = is_long ? equals != word.npos : word.size() > 2;
    if (*row.value == '\0') {
      if (has_value) throw doctor_error(fmt::format("--{} takes no value", row.name));
      value = "1";
    } else if (!has_value) {
      if (next == words.size()) throw doctor_error(word + " needs a value, but nothing follows it");
      value = words[next++];
    }
    GivenOption& given = split.options[row.name];
    const bool again = !given.value.empty() && row.name == std::string("ssh-options");
    given.value = again ? given.value + "\n" + value : value;
    given.source = *row.value == '\0' ? fmt::format("--{}", row.name)
                                      : fmt::format("--{}={}", row.name, value);
  }
  return split;
}

// Also of those that ddprun itself does not have.
const GivenOption* find_given(const SplitArguments& split, const std::string& name) {
  const auto found = split.options.find(name);
  return found == split.options.end() ? nullptr : &found->second;
}

ColorWhen color_when(const std::string& word) {
  return word == "always"  ? ColorWhen::Always
         : word == "never" ? ColorWhen::Never
                           : ColorWhen::Auto;
}

}  // namespace

const std::vector<WatchOptionRow>& doctor_option_table() {
  static const std::vector<WatchOptionRow> table = {
      {"hosts", 'H', "HOST[:N],...", "The hosts of the job to be, as for ddprun -H."},
      {"hostfile", 0, "FILE", "The same from a file, as for ddprun --hostfile."},
      {"write-hostfile", 0, "FILE",
       "Write the hosts that can form a job, with slots=N as --nproc-per-node auto counts."},
      {"master-port", 0, "PORT", "The rendezvous port that is tried; 29500 unless given."},
      {"timeout", 0, "SECONDS",
       "How long a connection, or a large message, may take before it counts as lost; 3 unless "
       "given."},
      {"ssh-options", 0, "WORDS", "More options for ssh, as for ddprun."},
      {"copy-self", 0, "", "Send this ddprun to hosts that have none, and take it away again."},
      {"color", 0, "auto|always|never", "Colors; auto: on a terminal."},
      {"brief", 0, "", "Only what is red, a line each: for ddprun --node-check, and scripts."},
      {"json", 0, "", "All that was found as one JSON object."}};
  return table;
}

std::string doctor_help() {
  constexpr std::size_t columns = 80;
  std::string text =
      "usage: ddprun doctor [-H HOST,... | --hostfile FILE] [options]\n\n" +
      command_line::wrapped(
          "Says what would keep a job from running, before it is started: names, ports both ways, "
          "interfaces, large messages (MTU), clocks, limits, /dev/shm, memory, drivers, versions, "
          "the secret, and the bandwidth of each pair of hosts. Red, amber or green, with what to "
          "do. Without hosts: this machine alone.",
          0, columns) +
      "\n" +
      command_line::wrapped(
          "Each host is asked over ssh, as ddprun -H starts nodes; nothing stays there. Of up to "
          "16 hosts all pairs are measured, a third of a second each, of more a ring and a sample.",
          0, columns) +
      "\n";
  for (const WatchOptionRow& row : doctor_option_table()) {
    std::string head = row.letter == 0 ? "" : fmt::format("-{}, ", row.letter);
    head += fmt::format("--{}", row.name);
    if (*row.value != '\0') head += fmt::format(" {}", row.value);
    text += fmt::format("  {}\n{}", head, command_line::wrapped(row.meaning, 8, columns));
  }
  return text +
         "\n  ddprun doctor -H host-a,host-b\n"
         "  ddprun doctor --hostfile all.txt --write-hostfile good.txt\n\n"
         "Exit status: 0 green or amber; 1 something is red; 2 the command line is wrong.\n"
         "To run a program that is called doctor: ddprun -- doctor";
}

DoctorOptions parse_doctor_options(const std::vector<std::string>& words,
                                   const EnvironmentLookup& environment) {
  DoctorOptions result;
  if (words == std::vector<std::string>{"--probe"}) {
    result.is_probe = true;
    return result;
  }
  SplitArguments split = split_doctor_words(words);
  const bool named =
      find_given(split, "hosts") != nullptr || find_given(split, "hostfile") != nullptr;
  // The same variables that name the hosts of a job.
  for (const auto& [option, variable] :
       {std::pair("hosts", "PET_HOSTS"), std::pair("hostfile", "PET_HOSTFILE"),
        std::pair("ssh-options", "PET_SSH_OPTIONS")}) {
    const auto value = environment(variable);
    if (!value || value->empty() || find_given(split, option) != nullptr) continue;
    if (named && option != std::string("ssh-options")) continue;
    split.options[option] = {*value, std::string(variable) + "=" + *value};
  }
  if (const GivenOption* port = find_given(split, "master-port")) {
    result.port = parse_count(*port, 1, 65'535);
  }
  if (const GivenOption* timeout = find_given(split, "timeout")) {
    result.timeout = parse_seconds(*timeout, timeout->value, std::chrono::milliseconds(100));
    if (result.timeout > std::chrono::minutes(10)) {
      throw doctor_error(timeout->source + ": expected 600 seconds at most");
    }
  }
  if (const GivenOption* color = find_given(split, "color")) {
    result.color = color_when(parse_choice(*color, {"auto", "always", "never"}));
  }
  if (const GivenOption* file = find_given(split, "write-hostfile")) {
    result.write_hostfile = parse_output_file(*file);
  }
  result.json = find_given(split, "json") != nullptr;
  result.brief = find_given(split, "brief") != nullptr;
  if (result.json && result.brief) throw doctor_error("--json and --brief contradict each other");
  for (const char* own : {"master-port", "timeout", "color", "write-hostfile", "json", "brief"}) {
    split.options.erase(own);
  }
  LaunchOptions job;
  take_hosts(split, job);
  result.over_ssh = std::move(job.over_ssh);
  return result;
}

}  // namespace ddprun::launcher
