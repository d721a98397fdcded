// Cuts a stream of bytes into what may be shown now and what waits for the rest of its line. Pure.
// A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

class OutputLines {
 public:
  static constexpr std::size_t line_bytes_max = 1 << 20;

  // What may be shown before its line has ended.
  enum class Early {
    Nothing,  // Others draw: of a line that is redrawn ('\r') only the last state is kept.
    Redraws,  // A line that is being redrawn.
    All,      // Nobody else's line could be disturbed.
  };

  // Calls show(text) for what may be shown: whole lines at once; the rest of a line as `early`
  // allows, or when it is longer than line_bytes_max.
  template <typename Show>
  void add(std::string_view bytes, Early early, Show&& show) {
    if (!rest_.empty()) {
      const std::size_t end = bytes.find('\n');
      if (end != bytes.npos) {
        rest_ += bytes.substr(0, end + 1);
        finish(show);
        bytes.remove_prefix(end + 1);
      }
    }
    if (const std::size_t last_end = bytes.rfind('\n'); last_end != bytes.npos) {
      show(bytes.substr(0, last_end + 1));
      bytes.remove_prefix(last_end + 1);
    }
    redrawn_ = redrawn_ || bytes.find('\r') != bytes.npos;
    rest_ += bytes;
    if (rest_.empty()) return;
    const bool redraws = redrawn_ && rest_.back() != '\r';  // That may be half of "\r\n".
    if (early == Early::Nothing && redraws) rest_.erase(0, rest_.rfind('\r'));
    if (early == Early::All || rest_.size() >= line_bytes_max ||
        (early == Early::Redraws && redraws)) {
      finish(show);
    }
  }

  // There is text of a line that has not ended, and none that redraws it.
  bool holds_text() const { return !rest_.empty() && !redrawn_; }

  // Shows what is left: the stream has ended, or stands in the middle of a line.
  template <typename Show>
  void finish(Show&& show) {
    if (!rest_.empty()) show(std::string_view(rest_));
    rest_.clear();
    redrawn_ = false;
  }

 private:
  std::string rest_;
  bool redrawn_ = false;  // rest_ holds a '\r'.
};

}  // namespace ddprun::launcher
