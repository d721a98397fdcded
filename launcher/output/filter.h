// Lines that hold one of a few texts, for the filtered copies of tee'd streams. Pure.
// A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// A line ends with '\n', '\r' or "\r\n", as torchrun reads them: each state of a progress bar is a
// line. What is passed on ends with '\n'. Lines longer than line_bytes_max are looked at in pieces.
class LineFilter {
 public:
  static constexpr std::size_t line_bytes_max = 64 << 10;

  // `prefix` is put before each line. An empty text is in every line.
  LineFilter(std::vector<std::string> texts, std::string prefix);

  // Appends to `found` what of these bytes is to be kept.
  void add(std::string_view bytes, std::string& found);
  void finish(std::string& found);  // The stream has ended.

 private:
  void end_line(std::string_view line, std::string& found) const;

  std::vector<std::string> texts_;
  std::string prefix_;
  std::string rest_;           // Of a line whose end has not come.
  bool after_return_ = false;  // The last byte was '\r': a '\n' now belongs to it.
};

}  // namespace ddprun::launcher
