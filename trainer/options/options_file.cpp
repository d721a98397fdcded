// Quotes are followed as far as is needed to know where a comment begins.
#include "trainer/options/options_file.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "trainer/options/train_options.h"

namespace ddprun::trainer {
namespace {

constexpr std::string_view blanks = " \t\r";

[[noreturn]] void fail(int line, const std::string& what) {
  throw UsageError("line " + std::to_string(line) + ": " + what);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

// The place of the quotes' end; `begin` is that of their begin.
std::size_t end_of_quotes(std::string_view line, std::size_t begin, int number) {
  const char quote = line[begin];
  if (line.substr(begin, 3) == std::string(3, quote)) {
    fail(number, "three quotes begin a text of several lines, which is not read here: give one");
  }
  std::size_t end = begin + 1;
  for (; end < line.size() && line[end] != quote; ++end) {
    if (line[end] == '\\' && (quote == '"' || line.substr(end + 1, 1) == "'")) {
      fail(number,
           "a \\ in quotes, and escapes are not read here: 'single quotes' take a text as "
           "it is, up to a \\ at their end");
    }
  }
  if (end == line.size()) fail(number, "quotes that do not end on this line");
  constexpr std::string_view may_follow = " \t\r,]=.#";
  if (end + 1 < line.size() && may_follow.find(line[end + 1]) == may_follow.npos) {
    fail(number, "something stands right behind the end of its quotes");
  }
  return end;
}

// An apostrophe within a word begins no quotes.
std::string_view without_comment(std::string_view line, int number) {
  if (line.starts_with(';')) return {};
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] == '#') return trimmed(line.substr(0, at));
    const bool word_begins =
        at == 0 || std::string_view(" \t,[=").find(line[at - 1]) != std::string_view::npos;
    if (word_begins && (line[at] == '"' || line[at] == '\'')) at = end_of_quotes(line, at, number);
  }
  return line;
}

bool begins_list(std::string_view line) {
  const std::size_t sign = line.find('=');
  return sign != line.npos && trimmed(line.substr(sign + 1)).starts_with('[');
}

// The option that a line is for, however it is written: lr_gamma and "lr-gamma" are one.
std::string option_of(std::string_view line) {
  std::string name(trimmed(line.substr(0, line.find('='))));
  std::erase_if(name, [](char c) { return c == '"' || c == '\''; });
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// `lines` has those of the names before.
void refuse_second(std::string_view line, int number, std::map<std::string, int>& lines) {
  if (line.starts_with('[')) lines.clear();  // A section is refused elsewhere, and by its name.
  if (line.empty()) return;
  const auto [first, is_new] = lines.emplace(option_of(line), number);
  if (is_new) return;
  fail(number, first->first + " stands on line " + std::to_string(first->second) +
                   " already: leave one of the two out");
}

}  // namespace

std::string plain_options(std::string_view text) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  std::string result;
  int list_begin = 0;  // The line of the list that is open, or 0.
  std::map<std::string, int> lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = without_comment(trimmed(text.substr(0, end)), number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (list_begin == 0) refuse_second(line, number, lines);
    if (list_begin == 0 && begins_list(line)) list_begin = number;
    if (line.ends_with(']')) list_begin = 0;
    result += line;
    result += list_begin != 0 ? ' ' : '\n';
  }
  if (list_begin != 0) fail(list_begin, "a list without its ]");
  return result;
}

}  // namespace ddprun::trainer
