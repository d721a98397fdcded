// The texts that are made from the table of options, and that the files in the tree are those.
#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "launcher/documents/completion.h"
#include "launcher/documents/man_page.h"
#include "launcher/documents/markdown_table.h"
#include "launcher/options/help.h"
#include "launcher/options/subcommands.h"
#include "launcher/options/table.h"
#include "launcher/plot_command.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::testing::contains;
using ddprun::testing::content_of;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::size_t width_of(const std::string& text) {
  std::size_t width = 0;
  for (const std::string& line : lines_of(text)) width = std::max(width, line.size());
  return width;
}

// Compares a file of the tree with what it should hold; scripts/update_docs makes it so.
void check_file(const std::string& name, const std::string& wanted) {
  const std::string path = std::string(DDPRUN_SOURCE_DIR) + "/" + name;
  INFO(name << " is not what the options say: run scripts/update_docs");
  CHECK(content_of(path) == wanted);
}

bool has_option(const std::string& text, const std::string& name) {
  const std::string option = "--" + name;
  for (std::size_t at = 0; (at = text.find(option, at)) != text.npos; ++at) {
    const char next = at + option.size() < text.size() ? text[at + option.size()] : ' ';
    if (std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '-') return true;
  }
  return false;
}

// A man page without its escapes: "\\fB\\-\\-tee\\fR" is "--tee".
std::string plain(const std::string& page) {
  std::string text;
  for (std::size_t at = 0; at < page.size(); ++at) {
    if (page.compare(at, 2, "\\f") == 0) {
      at += 2;
    } else if (page[at] != '\\') {
      text += page[at];
    }
  }
  return text;
}

}  // namespace

TEST_CASE("the short help is one screen with the examples first", "[documents]") {
  const std::string text = short_help();

  INFO(text);
  CHECK(lines_of(text).size() <= 23);  // And a line for the prompt.
  CHECK(width_of(text) <= 80);
  CHECK(text.back() != '\n');
  CHECK(text.find("ddprun --nproc-per-node 2 ./train") < text.find("workers on this node"));
  for (const SubcommandRow& row : subcommand_table()) CHECK(contains(text, row.name));
}

TEST_CASE("the whole help has every option, the examples first", "[documents]") {
  const std::string text = full_help();

  INFO(text);
  CHECK(width_of(text) <= 80);
  CHECK(text.back() != '\n');
  CHECK(text.find("two workers on this machine") < text.find(group_title(OptionGroup::Job)));
  for (const OptionGroup group : option_groups()) {
    const std::string title = group_title(group);
    CHECK(text.find("\n" + title + "\n") != text.npos);
  }
  for (const OptionRow& row : option_table()) {
    const std::string signature = row.signature();
    INFO(signature);
    const bool shown = text.find("\n  " + signature) != text.npos;
    CHECK(shown == (row.group != OptionGroup::Refused));
  }
}

TEST_CASE("the man page and the completions have every option", "[documents]") {
  for (const OptionRow& row : option_table()) {
    INFO(row.name);
    const bool accepted = row.group != OptionGroup::Refused;
    CHECK(has_option(plain(man_page()), row.name) == accepted);
    CHECK(has_option(bash_completion(), row.name) == accepted);
    CHECK(has_option(zsh_completion(), row.name) == accepted);
    CHECK(has_option(fish_completion(), row.name) == accepted);
  }
}

TEST_CASE("completions offer plot's own options, which its help has", "[documents]") {
  const std::string bash = bash_completion(), zsh = zsh_completion();

  CHECK(contains(bash, "    plot)\n      offer=(-h -o --output --help) files=1\n"));
  CHECK(contains(plot_help(), "  -o, --output FILE "));
  const std::string of_plot = zsh.substr(zsh.find("    plot)\n"));
  CHECK(contains(of_plot.substr(0, of_plot.find("return")), "'--output=["));
  CHECK(contains(of_plot.substr(0, of_plot.find("return")), "'*:run:_files'"));
}

TEST_CASE("an option's choices are what its value lists in small letters", "[documents]") {
  using Words = std::vector<std::string>;
  CHECK(option_row("nproc-per-node").choices() == Words{"auto", "cpu", "gpu"});
  CHECK(option_row("rdzv-backend").choices() == Words{"static", "c10d", "etcd"});
  CHECK(option_row("tee").choices() == Words{"0", "1", "2", "3"});
  CHECK(option_row("numa-binding").choices() ==
        Words{"node", "socket", "exclusive", "core-complex"});
  CHECK(option_row("log-dir").choices().empty());
  CHECK(option_row("standalone").choices().empty());
}

TEST_CASE("docs/cli.md has the tables that the parser knows", "[documents]") {
  const std::string page = content_of(DDPRUN_SOURCE_DIR "/docs/cli.md");
  check_file("docs/cli.md", with_markdown_table(page));
  CHECK_THROWS_AS(with_markdown_table("no marks"), std::runtime_error);
}

TEST_CASE("the man page and the completions are those of this parser", "[documents]") {
  check_file("docs/ddprun.1", man_page());
  check_file("completions/ddprun.bash", bash_completion());
  check_file("completions/_ddprun", zsh_completion());
  check_file("completions/ddprun.fish", fish_completion());
}
