// One stream of one worker, from what was read to where it goes:
//
//   bytes --> log file (at once)
//        \--> lines with certain texts --> filtered log
//         \-> whole lines, prefix --> console (or first to where equal lines are collapsed)
#pragma once

#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/output/collapsing_console.h"
#include "launcher/output/console.h"
#include "launcher/output/filter.h"
#include "launcher/output/lines.h"
#include "launcher/output/log.h"

namespace ddprun::launcher {

struct OutputStream {
  explicit OutputStream(asio::io_context& io) : descriptor(io) {}

  // Passes bytes on to everything but the descriptor. `alone`: nobody else writes to the console.
  // `complain` is given a line when a file cannot be written; the stream goes on without it.
  using Complain = std::function<void(const std::string&)>;
  void take(std::string_view bytes, bool alone, const Complain& complain);
  void end();  // No more comes. Closes descriptor and files.
  // Ends what was written so far: files are closed, the console forgets this stream. What comes
  // next goes where the members say that are set after this.
  void leave_destinations();

  asio::posix::stream_descriptor descriptor;  // Closed: not piped, or ended.
  OutputConsole* console = nullptr;           // Null: not shown.
  std::shared_ptr<CollapsingConsole> collapsing;
  std::string prefix;  // With its color.
  int prefix_columns = 0;
  int local_rank = 0;
  bool is_err = false;
  bool is_pty = false;
  bool paused = false;  // Not read until the console has caught up.

  std::unique_ptr<OutputLog> log;
  std::optional<LineFilter> filter;
  std::shared_ptr<OutputLog> filtered;  // Shared by the workers of an attempt.

 private:
  void show(std::string_view text);
  void keep_filtered(std::string_view bytes, const Complain& complain);

  OutputLines lines_;
  bool line_shown_ = false;  // The beginning of the current line is on the console.
  std::string found_;
};

}  // namespace ddprun::launcher
