// The texts of -h and --help. The width is fixed at 80: help is read in pagers, mails and tickets,
// and a test can compare it.
#include "launcher/options/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "command_line/wrapped.h"
#include "launcher/options/subcommands.h"
#include "launcher/options/table.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t columns = 80;
constexpr std::size_t meaning_column = 8;

struct BriefRow {
  const char* name;
  const char* meaning;
};
// What -h shows; as many as fit on a screen of 24 lines.
constexpr BriefRow brief_rows[] = {
    {"nproc-per-node", "workers on this node"},
    {"hosts", "start it on these hosts, over ssh"},
    {"nnodes", "nodes of the job"},
    {"node-rank", "rank of this node"},
    {"master-addr", "host of node 0"},
    {"master-port", "port there"},
    {"standalone", "one node, free port, random id"},
    {"max-restarts", "failures the job survives"},
    {"numa-binding", "CPUs near each worker's GPU"},
    {"omp-threads", "OMP_NUM_THREADS"},
    {"log-dir", "where log files go"},
    {"redirects", "to files: 1 stdout, 2 stderr, 3 both"},
    {"tee", "to files and console, likewise"},
    {"module", "run the program as python -m"},
};

std::string wrapped(const std::string& text, std::size_t indent) {
  return command_line::wrapped(text, indent, columns);
}

}  // namespace

std::string usage_line() {
  return "usage: ddprun [options] [--] program [arguments of the program]\n";
}

const std::vector<UsageExample>& usage_examples() {
  static const std::vector<UsageExample> examples = {
      {"ddprun --nproc-per-node 2 ./train --epochs 10", "two workers on this machine", true},
      {"ddprun --nproc-per-node gpu train.py --lr 0.1", "one Python worker per GPU", true},
      {"ddprun --nnodes 2 --node-rank 0 --master-addr host-a ./train",
       "node 0 of two; on the other node: --node-rank 1", true},
      {"ddprun -H host-a:8,host-b:8 ./train",
       "two nodes of eight workers, started over ssh from here", false},
      {"ddprun --nproc-per-node 2 --max-restarts 3 ./train", "survives three failures", false},
      {"ddprun --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint host-a ./train",
       "elastic: two to four nodes, the same command on each", false},
      {"ddprun --nproc-per-node 8 --numa-binding node --tee 3 ./train",
       "workers near their GPUs, their output on the console and in files", false},
  };
  return examples;
}

const std::vector<std::string>& usage_rules() {
  // In parentheses, or clang-tidy looks for a comma that is not missing.
  static const std::vector<std::string> rules = {
      ("A .py file is run by Python (PYTHON_EXEC, else that of ddprun's own environment, else "
       "of the active one, else python3); anything else is executed, found as a path, on PATH or "
       "beside ddprun."),
      ("Options may be written with dashes or underscores, as --x=v or --x v, and abbreviated. "
       "Each "
       "has a variable, PET_ and its name in capitals; the command line wins. Options end at the "
       "program: nothing after it is read as one."),
      ("env is the subcommand only with nothing but options behind it: ddprun env FOO=1 ./train "
       "and "
       "ddprun -- env run the program env."),
      ("ddprun status, top, logs and stacks look at jobs that run; each shows its options with -h. "
       "They are commands as the very first word alone: ddprun -- status runs a program of that "
       "name."),
      ("Started as ddprun-launch it passes --local-rank to the workers, as "
       "torch.distributed.launch "
       "does.")};
  return rules;
}

std::string short_help() {
  constexpr std::size_t brief_column = 36;
  std::string text = usage_line() + "\n";
  for (const UsageExample& example : usage_examples()) {
    if (example.in_short_help) text += "  " + example.command + "\n";
  }
  text += "\n";
  for (const BriefRow& brief : brief_rows) {
    const OptionRow& row = option_row(brief.name);
    std::string line = fmt::format("  {}", row.signature());
    // A long list of choices is left to --help.
    if (line.size() + 2 > brief_column) line = fmt::format("  --{} ...", row.name);
    line.resize(brief_column, ' ');
    line += brief.meaning;
    const bool says_much = !row.fallback.empty() && row.fallback != "off";
    const std::string fallback = says_much ? fmt::format(" ({})", row.fallback) : "";
    if (line.size() + fallback.size() <= columns) line += fallback;
    text += line + "\n";
  }
  std::string names;
  for (const SubcommandRow& row : subcommand_table()) {
    names += (names.empty() ? "" : "|") + row.name;
  }
  return text + "\nddprun --help shows every option. Without a program: ddprun\n" + names + ".";
}

std::string full_help() {
  std::string text = usage_line() + "\n";
  for (const UsageExample& example : usage_examples()) {
    text += fmt::format("  {}\n{}", example.command, wrapped(example.meaning, meaning_column));
  }
  for (const std::string& rule : usage_rules()) text.append("\n").append(wrapped(rule, 0));
  text += "\nWithout a program\n";
  for (const SubcommandRow& row : subcommand_table()) {
    text += fmt::format("  ddprun {} {}\n{}", row.name, row.usage,
                        wrapped(row.meaning, meaning_column));
  }
  for (OptionGroup group : option_groups()) {
    text.append("\n").append(group_title(group)).append("\n");
    for (const OptionRow& row : option_table()) {
      if (row.group != group) continue;
      const std::string head = fmt::format("  {}", row.signature());
      const std::string fallback = row.fallback.empty() ? "" : fmt::format("({})", row.fallback);
      const bool fits = head.size() + 3 + fallback.size() <= columns;
      text += head + (fits && !fallback.empty() ? "   " : "") + (fits ? fallback : "") + "\n";
      text +=
          wrapped(fits ? row.meaning : fmt::format("{} {}", fallback, row.meaning), meaning_column);
    }
  }
  text.pop_back();  // Whoever prints it ends the line.
  return text;
}

std::string name_and_version() { return "ddprun " DDPRUN_VERSION; }

}  // namespace ddprun::launcher
