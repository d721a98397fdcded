// Worker output to console and files. On the console whole lines, with a prefix when more than one
// rank writes; in files exactly the worker's bytes.
//
//   pipe --read--> file
//            \---> whole lines, prefix --> console buffer --> stdout or stderr
//
// A line longer than 1 MiB is passed on in pieces, and on a terminal one that stands unfinished for
// 0.3 s, since it may be a prompt. A line being redrawn with '\r' (a progress bar)
// is passed on as it comes, of one rank at a time: the lowest that draws one; of the others' bars
// the last state is shown when their line ends. A line that has to be written meanwhile stands
// above the bar on a terminal, and below it elsewhere.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command_line/write_call.h"
#include "launcher/output/background_writer.h"
#include "launcher/output/color.h"
#include "launcher/output/console.h"
#include "launcher/output/worker_output.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// Reads workers' pipes as data comes; a slow console or file never blocks the agent and loses no
// byte: the pipe of the worker that writes too fast is left unread until that has caught up. What
// may hang in write(2) is written by threads (background_writer.h); everything else runs in the
// thread of `io`. Ignores SIGPIPE and SIGXFSZ in this process: when nobody reads the console any
// more its text is dropped and the files go on, and the other way round when one may not grow.
class OutputForwarder {
 public:
  // `console_out`/`console_err`: where console text goes; stay open and blocking, the caller's.
  explicit OutputForwarder(asio::io_context& io, int console_out = 1, int console_err = 2);
  ~OutputForwarder();  // Writes what is left, as flush(1 s); last_output.h is for waiting longer.

  // Colors of prefixes and of the launcher's own lines, for what is added from here on. Without a
  // call: none. `no_color`, `term`: those variables (color.h).
  void choose_colors(ColorWhen when, const std::optional<std::string>& no_color,
                     const std::optional<std::string>& term);
  // Called after the terminal on `console_out` has changed its size and the workers' have followed.
  // They are nobody's controlling terminal, so the kernel does not tell the workers.
  void on_resized(std::function<void()> handler);

  // One worker's two streams. `out`, `err`: read ends; none when that stream is not piped
  // (inherited, or redirected to a file by the child itself). Log files are appended to; what one
  // refuses is complained of, and missing there with a line that says so when it takes text again,
  // and the worker goes on. Throws
  // std::system_error when one cannot be opened. With `output.pty` they are our ends of
  // pseudo-terminals, whose size is set here.
  class Stream;
  std::shared_ptr<Stream> add(const WorkerOutput& output, rendezvous::UniqueFd out,
                              rendezvous::UniqueFd err);

  // From here on this worker's output goes where `output` says; what has come so far, also a line
  // that has not ended, where it was said before. Throws as add().
  void redirect(Stream& stream, const WorkerOutput& output);

  // The last lines (at most `lines`, at most 8 KiB) that came through stderr of this worker.
  static std::string last_stderr(const Stream& stream, int lines = 20);

  // What it wrote until now is no matter of its next failure.
  static void forget_stderr(Stream& stream);

  // Reads what is in the pipes now, without waiting for more.
  void pump(Stream& stream);

  // Reads what is still in the pipes without waiting for their end (a grandchild may hold them
  // open), passes it on and stops reading.
  void drain(Stream& stream);

  // A file of somebody else's that is written and waited for like the log files, until the last who
  // holds it lets go. `on_failed` may be called until then, and once more; `on_refused` where
  // `write` has taken bytes with an error.
  std::shared_ptr<BackgroundWriter> add_file(command_line::WriteCall write,
                                             std::function<void(int)> on_failed,
                                             std::function<void(int)> on_refused = {});

  // Writes everything out, blocking for as long as each console and file takes some at least every
  // `stuck_limit`. False when some is left.
  bool flush(std::chrono::milliseconds stuck_limit);

  // What was not taken yet. Collapsed lines that still wait for equal ones do not count before
  // when_written() or flush().
  struct Pending {
    std::size_t readers = 0;  // Of pipes and terminals.
    std::size_t files = 0;    // That are consoles.
    std::size_t logs = 0;     // All other files.
    std::size_t bytes() const { return readers + files + logs; }
  };
  Pending pending() const;
  std::size_t pending_bytes() const { return pending().bytes(); }
  // Calls `handler` from the io_context, once, when everything was taken or nobody reads it any
  // more; at once when there is no way to wait for a console. Before that, what one console has
  // refused for good is told on the other one.
  void when_written(std::function<void()> handler);
  // Gives up what is pending; returns how many bytes that was.
  std::size_t drop_pending();
  // stderr is another console than stdout and has taken everything.
  bool stderr_is_free() const;

  // For text that comes by another way than a worker's pipe; whoever lets it come holds it back
  // while the console is congested. stdout's is stderr's too when both lead to the same place.
  OutputConsole& console(bool is_err);

  // Writes one line of the launcher's own to stderr, in order with forwarded lines.
  void write_line(const std::string& line, LineKind kind = LineKind::Plain);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
