// Cuts a stream of bytes into what may be shown now and what waits for the rest of its line. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace ddprun::launcher {

class OutputLines {
 public:
  static constexpr std::size_t kLineBytesMax = 64 << 10;

  // Calls show(text) for what may be shown. Whole lines at once; the rest of a line when it is
  // being redrawn ('\r'), longer than kLineBytesMax, or when `alone` says that nobody else's line
  // could be disturbed.
  template <typename Show>
  void add(std::string_view bytes, bool alone, Show&& show) {
    const std::size_t newline = bytes.rfind('\n');
    if (newline != bytes.npos) {
      finish(show);
      show(bytes.substr(0, newline + 1));
      bytes.remove_prefix(newline + 1);
    }
    rest_ += bytes;
    if (rest_.empty()) return;
    // A final '\r' may be half of "\r\n".
    const std::size_t redraw = rest_.find('\r');
    if (alone || rest_.size() >= kLineBytesMax || (redraw != rest_.npos && rest_.back() != '\r')) {
      finish(show);
    }
  }

  // Shows what is left: the stream has ended.
  template <typename Show>
  void finish(Show&& show) {
    if (!rest_.empty()) show(std::string_view(rest_));
    rest_.clear();
  }

 private:
  std::string rest_;
};

}  // namespace ddprun::launcher
