// Lines end as in torchrun's filtered files (\n, \r or \r\n; checked beside torchrun 2.11).
#include "launcher/output/filter.h"

#include <algorithm>
#include <utility>

namespace ddprun::launcher {

LineFilter::LineFilter(std::vector<std::string> texts, std::string prefix)
    : texts_(std::move(texts)), prefix_(std::move(prefix)) {}

void LineFilter::end_line(std::string_view line, std::string& found) const {
  const bool wanted = std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
    return line.find(text) != line.npos;
  });
  if (!wanted) return;
  found += prefix_;
  found += line;
  found += '\n';
}

void LineFilter::add(std::string_view bytes, std::string& found) {
  const bool returns = bytes.find('\r') != bytes.npos;  // Rare, and then slower.
  while (!bytes.empty()) {
    // The two bytes of \r\n may come in two reads.
    if (std::exchange(after_return_, false) && bytes[0] == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = returns ? bytes.find_first_of("\r\n") : bytes.find('\n');
    if (end == bytes.npos) {
      rest_ += bytes;
      if (rest_.size() >= line_bytes_max) finish(found);
      return;
    }
    if (rest_.empty()) {
      end_line(bytes.substr(0, end), found);
    } else {
      rest_ += bytes.substr(0, end);
      end_line(std::exchange(rest_, {}), found);
    }
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
  }
}

void LineFilter::finish(std::string& found) {
  if (!rest_.empty()) end_line(std::exchange(rest_, {}), found);
}

}  // namespace ddprun::launcher
