// A table for each group of options; the rest of docs/cli.md is written by hand, around the marks.
#include "launcher/documents/markdown_table.h"

#include <stdexcept>

#include "launcher/options/table.h"

namespace ddprun::launcher {
namespace {

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

std::string markdown_table() {
  std::string text;
  for (OptionGroup group : option_groups()) {
    text.append("### ").append(group_title(group)).append("\n\n");
    text.append("| option | default | variable | meaning |\n|---|---|---|---|\n");
    for (const OptionRow& row : option_table()) {
      if (row.group != group) continue;
      const std::string variable = row.variable();
      text.append("| `").append(cell(row.signature())).append("` | ").append(cell(row.fallback));
      text.append(" | ").append(variable.empty() ? "" : "`" + variable + "`");
      text.append(" | ").append(cell(row.meaning)).append(" |\n");
    }
    text.append("\n");
  }
  std::string refused;
  for (const OptionRow& row : option_table()) {
    if (row.group != OptionGroup::Refused) continue;
    refused.append("| `--").append(row.name).append("` | ").append(row.meaning).append(" |\n");
  }
  if (refused.empty()) return text;
  return text + "### Refused\n\n| option | reason |\n|---|---|\n" + refused;
}

std::string with_markdown_table(std::string page) {
  const std::string begin = "<!-- options: begin -->\n\n", end = "<!-- options: end -->";
  const std::size_t from = page.find(begin), to = page.find(end);
  if (from == page.npos || to == page.npos || to < from) {
    throw std::runtime_error("the page has no lines \"<!-- options: begin -->\" and \"" + end +
                             "\", between which the tables belong");
  }
  const std::size_t start = from + begin.size();
  return page.replace(start, to - start, markdown_table() + "\n");
}

}  // namespace ddprun::launcher
