// Text in lines of a width, broken between words and never in one.
//
// A core: text in, text out.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>

namespace ddprun::command_line {

// `text` in lines of at most `columns`, each after `indent` blanks. A word that is wider than that
// has a line of its own.
inline std::string wrapped(const std::string& text, std::size_t indent, std::size_t columns) {
  std::istringstream words(text);
  std::string result, line(indent, ' ');
  bool empty = true;
  for (std::string word; words >> word;) {
    if (!empty && line.size() + 1 + word.size() > columns) {
      result += line + "\n";
      line.assign(indent, ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  return result + line + "\n";
}

}  // namespace ddprun::command_line
