// Kept short however much is written: for a report only the end counts.
#include "launcher/output/tail.h"

#include <algorithm>
#include <vector>

namespace ddprun::launcher {

std::string_view visible_part(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t redraw = line.rfind('\r');
  return redraw == line.npos ? line : line.substr(redraw + 1);
}

void OutputTail::add(std::string_view bytes) {
  text_ += bytes.substr(bytes.size() - std::min(bytes.size(), bytes_max));
  if (text_.size() > 2 * bytes_max) text_.erase(0, text_.size() - bytes_max);
}

std::string OutputTail::last_lines(int lines) const {
  std::string_view text = text_;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  text.remove_prefix(text.size() - std::min(text.size(), bytes_max));
  std::vector<std::string_view> found;
  while (!text.empty() && found.size() < static_cast<std::size_t>(std::max(lines, 0))) {
    const std::size_t newline = text.rfind('\n');
    found.push_back(visible_part(newline == text.npos ? text : text.substr(newline + 1)));
    text = newline == text.npos ? std::string_view() : text.substr(0, newline);
  }
  std::string result;
  for (auto line = found.rbegin(); line != found.rend(); ++line) {
    if (!result.empty()) result += '\n';
    result += *line;
  }
  return result;
}

}  // namespace ddprun::launcher
