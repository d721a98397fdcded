// Pieces of shell completions, as both programs have them.
//
// A core: text in, text out.
#pragma once

#include <string>
#include <vector>

namespace ddprun::command_line {

// Text inside the single quotes of an option of zsh's _arguments.
inline std::string zsh_quoted(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\'') {
      result += "'\\''";
      continue;
    }
    // _arguments ends its own parts at these.
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') result += '\\';
    result += letter;
  }
  return result;
}

// Text inside single quotes of fish.
inline std::string fish_quoted(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\'' || letter == '\\') result += '\\';
    result += letter;
  }
  return result;
}

inline std::string with_blanks(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Names as the items of a bash array, in lines of at most 100 columns.
inline std::string bash_array(const std::vector<std::string>& names) {
  std::string text, line = "   ";
  for (const std::string& name : names) {
    if (line.size() + 1 + name.size() > 100) {
      text += line + "\n";
      line = "   ";
    }
    line += " " + name;
  }
  return text + line + "\n";
}

}  // namespace ddprun::command_line
