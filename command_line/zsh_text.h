// Text inside the single quotes of an option of zsh's _arguments, in both programs' completions.
#pragma once

#include <string>

namespace ddprun::command_line {

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

}  // namespace ddprun::command_line
