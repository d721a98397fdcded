// Pieces of a man page, in the language of man(7).
//
// A core: text in, text out.
#pragma once

#include <string>

namespace ddprun::command_line {

// Text as it is to be read: no character of it is an instruction, and dashes can be copied.
inline std::string man_escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (result.empty() && (letter == '.' || letter == '\'')) result += "\\&";
    if (letter == '\\') {
      result += "\\e";
    } else if (letter == '-') {
      result += "\\-";
    } else {
      result += letter;
    }
  }
  return result;
}

inline std::string man_bold(const std::string& text) { return "\\fB" + man_escaped(text) + "\\fR"; }
inline std::string man_italic(const std::string& text) {
  return "\\fI" + man_escaped(text) + "\\fR";
}
inline std::string man_section(const std::string& title) { return ".SH " + title + "\n"; }
inline std::string man_item(const std::string& head, const std::string& text) {
  return ".TP\n" + head + "\n" + text + "\n";
}

// What a page of a program begins with. Its words are not broken at the ends of lines (.nh): a name
// of an option with a hyphen more cannot be copied.
inline std::string man_head(const std::string& name, const std::string& date,
                            const std::string& version) {
  return ".TH " + name + " 1 " + date + " \"" + version + "\" \"User commands\"\n.nh\n";
}

}  // namespace ddprun::command_line
