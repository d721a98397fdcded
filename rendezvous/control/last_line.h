// The last thing that a program printed, where one line has to do for all of it.
#pragma once

#include <string_view>

namespace ddprun::rendezvous {

// The last line that is more than blanks, without those behind it; "" when there is none. A
// carriage return, too, ends one: of a progress bar its last state counts. It lies in `text`.
inline std::string_view last_line(std::string_view text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == text.npos) return {};
  text = text.substr(0, end + 1);
  return text.substr(text.find_last_of("\r\n") + 1);  // npos + 1 is 0.
}

}  // namespace ddprun::rendezvous
