// One stream of one worker, from what was read to where it goes:
//
//   bytes --> log file
//        \--> lines with certain texts --> filtered log
//         \-> whole lines, prefix --> console (or first to where equal lines are collapsed)
#pragma once

#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/output/background_writer.h"
#include "launcher/output/collapsing_console.h"
#include "launcher/output/console.h"
#include "launcher/output/filter.h"
#include "launcher/output/lines.h"

namespace ddprun::launcher {

struct OutputStream {
  explicit OutputStream(asio::io_context& io) : descriptor(io), quiet(io) {}

  // Passes bytes on to everything but the descriptor. `alone`: nobody else writes to the console.
  void take(std::string_view bytes, bool alone);
  // The beginning of a line waits here for the rest of it, and somebody may sit at the console and
  // wait for just that: it may be a prompt.
  bool holds_open_line() const;
  void show_open_line();
  // Console or files are behind: to be read no further for now.
  bool congested() const;
  void end();  // No more comes. Closes descriptor and files.
  // Ends what was written so far: files are closed once they have it, the console forgets this
  // stream. What comes next goes where the members say that are set after this.
  void leave_destinations();

  asio::posix::stream_descriptor descriptor;  // Closed: not piped, or ended.
  asio::steady_timer quiet;                   // Runs while it holds an open line.
  OutputConsole* console = nullptr;           // Null: not shown.
  std::shared_ptr<CollapsingConsole> collapsing;
  std::string prefix;  // With its color.
  int prefix_columns = 0;
  int local_rank = 0;
  bool is_err = false;
  bool is_pty = false;
  bool paused = false;  // Not read until console and files have caught up.

  std::shared_ptr<BackgroundWriter> log;
  std::optional<LineFilter> filter;
  std::shared_ptr<BackgroundWriter> filtered;  // Shared by the workers of an attempt.

 private:
  void show(std::string_view text);

  OutputLines lines_;
  bool line_shown_ = false;  // The beginning of the current line is on the console.
  std::string found_;
};

}  // namespace ddprun::launcher
