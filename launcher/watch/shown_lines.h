// What somebody who follows a stream is shown of it: whole lines, and of one that is redrawn with
// '\r', as a progress bar is, its last state.
//
// A core: no sockets, threads or clock. It keeps little, however much comes without a line's end.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::launcher {

class ShownLines {
 public:
  static constexpr std::size_t line_bytes_max = 1 << 20;  // A longer one is shown in pieces.

  // Gets a line without its end. False: nobody reads any more; then what was called returns false.
  using Show = std::function<bool(std::string_view line)>;

  bool add(std::string_view bytes, const Show& show);
  // Shows the line that has not ended, if it is redrawn and stands at another state than when this
  // was called last.
  bool show_state(const Show& show);
  // The stream has ended: shows what is left.
  bool finish(const Show& show);

 private:
  void keep_last_state();
  bool end_line(const Show& show);

  std::string rest_;      // The beginning of a line whose end is to come; if redrawn, its state.
  bool redrawn_ = false;  // It has had a '\r'.
  std::optional<std::string> told_;  // Its state that show_state() has shown.
};

}  // namespace ddprun::launcher
