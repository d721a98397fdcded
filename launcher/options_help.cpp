// See options_help.h.
#include "launcher/options_help.h"

#include <algorithm>
#include <sstream>

#include "launcher/options_table.h"

namespace ddprun::launcher {
namespace {

constexpr const char* kUsage = "usage: ddprun [options] [--] program [arguments of the program]\n";
constexpr const char* kOneNodeExamples =
    "examples:\n"
    "  ddprun --nproc-per-node 2 ./train --epochs 10           two workers on this machine\n"
    "  ddprun --nproc-per-node gpu train.py                    one Python worker per GPU\n";
constexpr const char* kNodesExamples =
    "  ddprun --nproc-per-node 2 --max-restarts 3 ./train      survives three failures\n"
    "  ddprun --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 8 ./train\n"
    "                                       two nodes; on the other one with --node-rank 1\n"
    "  ddprun --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint node0 --rdzv-id job7 ./train\n"
    "                                       elastic: two to four nodes\n";
constexpr std::size_t kColumns = 100;
constexpr std::size_t kMeaningColumn = 8;

std::string signature(const OptionRow& row) {
  std::string text;
  if (row.letter != 0) text.append("-").append(1, row.letter).append(", ");
  text.append("--").append(row.name);
  if (!row.is_flag()) text.append(" ").append(row.value);
  return text;
}

// `text` broken into lines of at most kColumns, each after `indent` blanks.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::istringstream words(text);
  std::string result, line(indent, ' ');
  bool empty = true;
  for (std::string word; words >> word;) {
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line.assign(indent, ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  return result + line + "\n";
}

// A cell of a Markdown table must not hold a bare '|'.
std::string cell(const std::string& text) {
  std::string result;
  for (char letter : text) {
    if (letter == '|') result += '\\';
    result += letter;
  }
  return result;
}

}  // namespace

std::string short_help() {
  return std::string(kUsage) +
         "\nStarts the workers of a data-parallel job, on this node of it. The most used "
         "options:\n\n"
         "  --nproc-per-node N|auto|cpu|gpu   workers on this node (1)\n"
         "  --nnodes N|MIN:MAX                nodes of the job (1)\n"
         "  --node-rank N                     rank of this node (0)\n"
         "  --master-addr HOST                host of node 0 (127.0.0.1)\n"
         "  --master-port PORT                port there (29500; one node: a free port)\n"
         "  --standalone                      one node, free port, random id\n"
         "  --max-restarts N                  failures the job survives (0)\n"
         "  --log-dir FOLDER                  where log files go\n"
         "  -r, --redirects 0|1|2|3           to files: none, stdout, stderr, both\n"
         "  -t, --tee 0|1|2|3                 to files and console\n"
         "  -m, --module                      run the program as python -m\n\n" +
         kOneNodeExamples + "\nddprun --help shows every option.\n";
}

std::string full_help() {
  std::string text =
      std::string(kUsage) + "\n" + kOneNodeExamples + kNodesExamples +
      "\nA .py file is run by Python (PYTHON_EXEC, else the active virtual environment, "
      "else\npython3); anything else is executed, found as a path, on PATH or beside "
      "ddprun.\nOptions may be written with dashes or underscores, and abbreviated. Each "
      "has a variable,\nPET_ and its name in capitals; the command line wins.\n";
  for (OptionGroup group : option_groups()) {
    text.append("\n").append(group_title(group)).append("\n");
    for (const OptionRow& row : option_table()) {
      if (row.group != group) continue;
      text.append("  ").append(signature(row));
      if (!row.fallback.empty()) text.append("   (").append(row.fallback).append(")");
      text.append("\n").append(wrapped(row.meaning, kMeaningColumn));
    }
  }
  return text;
}

std::string version_text() { return "ddprun " DDPRUN_VERSION; }

std::string markdown_table() {
  std::string text;
  for (OptionGroup group : option_groups()) {
    text.append("### ").append(group_title(group)).append("\n\n");
    text.append("| option | default | variable | meaning |\n|---|---|---|---|\n");
    for (const OptionRow& row : option_table()) {
      if (row.group != group) continue;
      const std::string variable = row.variable();
      text.append("| `").append(cell(signature(row))).append("` | ").append(cell(row.fallback));
      text.append(" | ").append(variable.empty() ? "" : "`" + variable + "`");
      text.append(" | ").append(cell(row.meaning)).append(" |\n");
    }
    text.append("\n");
  }
  text.append("### Refused\n\n| option | reason |\n|---|---|\n");
  for (const OptionRow& row : option_table()) {
    if (row.group != OptionGroup::Refused) continue;
    text.append("| `--").append(row.name).append("` | ").append(row.meaning).append(" |\n");
  }
  return text;
}

}  // namespace ddprun::launcher
