// One console, shared by all workers: whole lines, prefixes, and never a write that holds the loop.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "command_line/gap_writer.h"
#include "command_line/write_call.h"
#include "launcher/output/background_writer.h"

namespace ddprun::launcher {

// Text that the console does not take yet is kept here; writers ask congested() and hold back.
// When nobody reads any more, text is dropped and that is not told: there is no one to tell. After
// any other error the console says later what is missing (command_line/gap_writer.h). Whether
// everything was written at the end is last_output.h's business.
class OutputConsole {
 public:
  // `fd` stays the caller's, and as it is (console_target.h). `write`: instead of its own, for
  // tests.
  OutputConsole(asio::io_context& io, int fd, command_line::WriteCall write = {});
  ~OutputConsole();
  OutputConsole(const OutputConsole&) = delete;
  OutputConsole& operator=(const OutputConsole&) = delete;

  // Whether both descriptors lead to the same terminal, pipe or file.
  static bool same_target(int fd, int other_fd);

  // Adds `writer`'s text, with `prefix` at the start of each line, and again after each '\r' that
  // redraws it. Text without a final '\n' leaves the line open: the writer's next text continues
  // it; anyone else's starts a new line.
  void add(const void* writer, std::string_view prefix, std::string_view text);
  // `writer` writes no more; its open line is left as it is.
  void forget(const void* writer);

  // Two progress bars in turn would fill the console: only the writer with the lowest rank may
  // redraw its line, until that line ends. claim_redraw() is told when one does.
  bool may_redraw(const void* writer, int rank) const;
  void claim_redraw(const void* writer, int rank);

  bool is_terminal() const { return terminal_; }
  // A regular file waits for a disk or a server, and for nobody to read it.
  bool is_file() const { return file_; }
  void use_colors(bool use) { colors_ = use; }
  bool colors() const { return colors_; }

  // Writes as much as the console takes now, and goes on in the background.
  void write_some();
  // The same, blocking while the console takes some at least every `stuck_limit`.
  bool flush(std::chrono::milliseconds stuck_limit);

  bool congested() const;
  // Called from the io_context when a congested console has caught up.
  void on_relieved(std::function<void()> handler) { relieved_ = std::move(handler); }
  // Calls `handler` from the io_context, once, when nothing is pending any more.
  void when_written(std::function<void()> handler);

  std::size_t pending_bytes() const;
  // False: text is pending, but the kernel gave no descriptor to wait for the console with.
  bool goes_on_alone() const { return pending_bytes() == 0 || waiting_ || background_; }
  // What the console has refused and was never told on it, in words for another one; "" = nothing.
  // `name`: "stdout" or "stderr".
  std::string told_elsewhere(std::string_view name) const;
  // Gives up what is pending; returns how many bytes that was. What follows begins a line.
  std::size_t drop();

 private:
  void start_line();
  void append(std::string_view prefix, std::string_view text, bool line_start);
  void wipe_line();
  void end_text(const void* writer, std::size_t begin);
  void hand_over();
  void wait_until_writable();

  asio::io_context& io_;
  int fd_;
  std::shared_ptr<command_line::GapWriter> target_;
  std::unique_ptr<BackgroundWriter> background_;              // Where a write may hang.
  std::unique_ptr<asio::posix::stream_descriptor> writable_;  // Readable when fd_ is writable.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  std::string text_;  // Not yet written: text_[written_...].
  std::size_t written_ = 0;
  const void* open_line_writer_ = nullptr;  // Whose line is unfinished; null: at a line start.
  const void* bar_writer_ = nullptr;        // Whose line is being redrawn.
  int bar_rank_ = 0;
  std::string bar_;  // What that line shows, prefix included; kept for terminals only.
  bool terminal_ = false;
  bool file_ = false;
  bool colors_ = false;
  bool waiting_ = false;
  bool broken_ = false;
  bool was_congested_ = false;
  std::function<void()> relieved_;
  std::function<void()> written_out_;
};

}  // namespace ddprun::launcher
