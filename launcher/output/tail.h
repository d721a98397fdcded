// The end of what a worker wrote to stderr, for the failure report. Pure.
// A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

// What a terminal shows of a line that was redrawn with '\r': its last state.
std::string_view visible_part(std::string_view line);

class OutputTail {
 public:
  static constexpr std::size_t bytes_max = 8 << 10;

  void add(std::string_view bytes);
  // The last lines, at most `lines` and bytes_max; redrawn ones as a terminal shows them.
  std::string last_lines(int lines) const;

 private:
  std::string text_;
};

}  // namespace ddprun::launcher
