// A state is shown without its '\r': on a terminal lines of several ranks come in turn, and one
// would be drawn over another's.
#include "launcher/watch/shown_lines.h"

#include <algorithm>

#include "launcher/output/tail.h"

namespace ddprun::launcher {

bool ShownLines::add(std::string_view bytes, const Show& show) {
  for (std::size_t end; (end = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(end + 1)) {
    rest_ += bytes.substr(0, end);
    if (!end_line(show)) return false;
  }
  rest_ += bytes;
  if (bytes.find('\r') != bytes.npos) keep_last_state();
  return rest_.size() < line_bytes_max || end_line(show);
}

bool ShownLines::show_state(const Show& show) {
  const std::string_view state = visible_part(rest_);
  const bool blank = state.find_first_not_of(' ') == state.npos;  // Wiped out, or begun anew.
  if (!redrawn_ || blank || told_ == state) return true;
  told_ = state;
  return show(state);
}

bool ShownLines::finish(const Show& show) { return rest_.empty() || end_line(show); }

void ShownLines::keep_last_state() {
  redrawn_ = true;
  const std::string_view state = visible_part(rest_);
  rest_.erase(0, static_cast<std::size_t>(state.data() - rest_.data()));
}

bool ShownLines::end_line(const Show& show) {
  const std::string_view line = visible_part(rest_);
  const bool shown = told_ == line || show(line);
  rest_.clear();
  redrawn_ = false;
  told_.reset();
  return shown;
}

}  // namespace ddprun::launcher
