// Reading and pausing: a slow console or file holds up the workers by their pipes, not by our
// memory.
#include "launcher/output/forwarder.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "command_line/gap_writer.h"
#include "launcher/output/collapsing_console.h"
#include "launcher/output/console.h"
#include "launcher/output/log.h"
#include "launcher/output/prefix.h"
#include "launcher/output/pty.h"
#include "launcher/output/stream.h"
#include "launcher/output/tail.h"

namespace ddprun::launcher {
namespace {

using rendezvous::UniqueFd;

constexpr std::size_t read_bytes = 256 << 10;
// More than any pipe holds: drain() must end though a grandchild goes on writing.
constexpr std::size_t drain_bytes_max = 2 << 20;
// At a time: each write that returns shows that the file's server is alive.
constexpr std::size_t log_write_bytes = 256 << 10;
// Longer than a pause within a line that is written in pieces, shorter than anybody's patience.
constexpr std::chrono::milliseconds quiet_time{300};

// What a full disk refuses is missing, and told of where it is when there is room again. The first
// of such bytes are taken with the error.
command_line::WriteCall write_log(std::shared_ptr<OutputLog> log) {
  const auto gaps = std::make_shared<command_line::GapWriter>(
      [log = std::move(log)](std::string_view text) -> command_line::Written {
        const int error = log->write(text);
        return {error == 0 ? text.size() : 0, error};
      },
      "[ddprun]");
  return [gaps](std::string_view text) {
    const bool was_whole = gaps->missing_bytes() == 0;
    command_line::Written written = gaps->write(text.substr(0, log_write_bytes));
    if (was_whole && gaps->missing_bytes() > 0) written.error = gaps->error();
    return written;
  };
}

}  // namespace

class OutputForwarder::Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(asio::io_context& io) : out(io), err(io) {}
  OutputStream out;
  OutputStream err;
  OutputTail tail;  // Of err.
};

struct OutputForwarder::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io_context, int console_out, int console_err)
      : io(io_context),
        console_fd(console_out),
        out(std::make_unique<OutputConsole>(io, console_out)),
        resized(io),
        buffer(read_bytes) {
    // One console when both lead to the same place, or a half-written line would be interrupted.
    if (!OutputConsole::same_target(console_out, console_err)) {
      separate_err = std::make_unique<OutputConsole>(io, console_err);
    }
  }

  OutputConsole& err() { return separate_err ? *separate_err : *out; }
  static void set_up(OutputStream& stream, const WorkerOutput& worker, UniqueFd fd);
  void direct(OutputStream& stream, const WorkerOutput& worker);
  void connect_console(OutputStream& stream, const WorkerOutput& worker, const std::string& prefix);
  std::shared_ptr<BackgroundWriter> add_file(command_line::WriteCall write,
                                             std::function<void(int error)> on_failed,
                                             std::function<void(int error)> on_refused = {});
  std::shared_ptr<BackgroundWriter> open_log(const std::string& path, LogRotation rotation = {});
  std::shared_ptr<BackgroundWriter> shared_log(const std::string& path, LogRotation rotation);
  void watch(const std::shared_ptr<Stream>& worker, OutputStream& stream);
  bool read_once(Stream& worker, OutputStream& stream);
  void take(Stream& worker, OutputStream& stream, std::string_view bytes);
  static void show_when_quiet(Stream& worker, OutputStream& stream);
  void resume();
  void set_size(OutputStream& stream) const;
  void watch_size();
  void show_collapsed();
  void write_line(const std::string& line, LineKind kind);
  std::vector<OutputConsole*> consoles() const;
  bool tell_missing();
  void check_written();

  asio::io_context& io;
  int console_fd;
  std::unique_ptr<OutputConsole> out;
  std::unique_ptr<OutputConsole> separate_err;
  std::shared_ptr<CollapsingConsole> collapsing_out, collapsing_err;  // When asked for.
  asio::signal_set resized;
  bool watches_size = false;
  std::function<void()> on_resized;
  std::vector<char> buffer;  // For every read: what is read is passed on at once.
  std::size_t bytes_read = 0;
  std::vector<std::weak_ptr<Stream>> streams;
  std::vector<std::shared_ptr<BackgroundWriter>>
      files;  // Also those that nobody writes to any more.
  std::map<std::string, std::weak_ptr<BackgroundWriter>> shared_logs;
  std::function<void()> when_written;
  bool told_missing = false;
};

void OutputForwarder::Impl::set_up(OutputStream& stream, const WorkerOutput& worker, UniqueFd fd) {
  if (!fd) return;
  rendezvous::hand_over(std::move(fd), stream.descriptor);
  stream.descriptor.native_non_blocking(true);
  stream.is_pty = worker.pty;
}

// Sets everything that says where it goes.
void OutputForwarder::Impl::direct(OutputStream& stream, const WorkerOutput& worker) {
  if (!stream.descriptor.is_open()) return;
  const StreamOutput& wanted = stream.is_err ? worker.err : worker.out;
  stream.local_rank = worker.local_rank;
  stream.console = !wanted.console ? nullptr : stream.is_err ? &err() : out.get();
  if (stream.console != nullptr) {
    connect_console(stream, worker, wanted.prefixed ? worker.prefix : "");
  }
  if (stream.is_pty) set_size(stream);
  if (!wanted.file.empty()) stream.log = open_log(wanted.file, wanted.rotation);
  if (!wanted.filtered_file.empty()) {
    stream.filter.emplace(wanted.filters, worker.prefix);
    stream.filtered = shared_log(wanted.filtered_file, wanted.rotation);
  }
}

void OutputForwarder::Impl::connect_console(OutputStream& stream, const WorkerOutput& worker,
                                            const std::string& prefix) {
  const int color = stream.console->colors() ? rank_color(worker.local_rank) : -1;
  stream.prefix = colored(prefix, color);
  stream.prefix_columns = columns_of(prefix);
  if (!worker.collapse) return;
  auto& collapsing = stream.is_err ? collapsing_err : collapsing_out;
  if (!collapsing) {
    collapsing = std::make_shared<CollapsingConsole>(io, *stream.console, worker.collapsed_prefix);
  }
  collapsing->use_prefix(worker.collapsed_prefix);
  stream.collapsing = collapsing;
  collapsing->add_writer(worker.local_rank);
}

// What is given out ends the file with the last who holds it; until all is written we hold it, too.
std::shared_ptr<BackgroundWriter> OutputForwarder::Impl::add_file(
    command_line::WriteCall write, std::function<void(int)> on_failed,
    std::function<void(int)> on_refused) {
  std::erase_if(files, [](const auto& file) { return file->has_ended(); });
  const auto relieved = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->resume();
  };
  const auto file = std::make_shared<BackgroundWriter>(
      io, std::move(write),
      BackgroundWriter::Events{.on_relieved = relieved,
                               .on_failed = std::move(on_failed),
                               .on_refused = std::move(on_refused)});
  files.push_back(file);
  return {file.get(), [file](BackgroundWriter*) { file->end(); }};
}

std::shared_ptr<BackgroundWriter> OutputForwarder::Impl::open_log(const std::string& path,
                                                                  LogRotation rotation) {
  // A full disk costs the log, and not the worker.
  const auto complain = [weak = weak_from_this(), path](const char* what_follows) {
    return [weak, path, what_follows](int error) {
      const auto self = weak.lock();
      if (!self) return;
      self->write_line(
          "ddprun: cannot write the log file " + path + ": " + std::strerror(error) + what_follows,
          LineKind::Plain);
    };
  };
  return add_file(write_log(std::make_shared<OutputLog>(path, rotation)),
                  complain("; the worker goes on without it"),
                  complain("; the worker goes on, and what it says is missing there until it can"));
}

// One for all who name this path, as long as any of them lives; rotated as the first one says.
std::shared_ptr<BackgroundWriter> OutputForwarder::Impl::shared_log(const std::string& path,
                                                                    LogRotation rotation) {
  auto log = shared_logs[path].lock();
  if (!log) {
    log = open_log(path, rotation);
    shared_logs[path] = log;
  }
  return log;
}

void OutputForwarder::Impl::watch(const std::shared_ptr<Stream>& worker, OutputStream& stream) {
  if (!stream.descriptor.is_open()) return;
  stream.descriptor.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [weak = weak_from_this(), worker, &stream](const asio::error_code& error) {
        const auto self = weak.lock();
        if (error || !self || !stream.descriptor.is_open()) return;
        // Not read, so the pipe fills and the worker waits: what a slow reader leaves does not pile
        // up here.
        if (stream.congested()) {
          stream.paused = true;
          return;
        }
        self->read_once(*worker, stream);
        self->watch(worker, stream);
      });
}

// False when nothing more can be read now.
bool OutputForwarder::Impl::read_once(Stream& worker, OutputStream& stream) {
  if (!stream.descriptor.is_open()) return false;
  const ssize_t count = ::read(stream.descriptor.native_handle(), buffer.data(), buffer.size());
  if (count > 0) {
    bytes_read += static_cast<std::size_t>(count);
    take(worker, stream, {buffer.data(), static_cast<std::size_t>(count)});
    return true;
  }
  if (count < 0 && errno == EINTR) return true;
  // A pseudo-terminal ends with EIO, once everything was read.
  if (count == 0 || errno != EAGAIN) stream.end();
  return false;
}

void OutputForwarder::Impl::take(Stream& worker, OutputStream& stream, std::string_view bytes) {
  if (stream.is_err) worker.tail.add(bytes);
  const bool alone = stream.prefix.empty() && !stream.collapsing && streams.size() == 1;
  stream.take(bytes, alone);
  if (stream.holds_open_line()) show_when_quiet(worker, stream);
}

// Each read puts it off. Without it a debugger's prompt comes after its answer.
void OutputForwarder::Impl::show_when_quiet(Stream& worker, OutputStream& stream) {
  stream.quiet.expires_after(quiet_time);
  stream.quiet.async_wait([weak = worker.weak_from_this(), &stream](const asio::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    stream.show_open_line();
  });
}

void OutputForwarder::Impl::resume() {
  for (const auto& weak : streams) {
    const auto worker = weak.lock();
    if (!worker) continue;
    for (OutputStream* stream : {&worker->out, &worker->err}) {
      if (std::exchange(stream->paused, false)) watch(worker, *stream);
    }
  }
}

// As wide as the launcher's terminal less the prefix, so that a progress bar fits beside it.
void OutputForwarder::Impl::set_size(OutputStream& stream) const {
  TerminalSize size;
  read_terminal_size(console_fd, size);
  size.columns = std::max(1, size.columns - stream.prefix_columns);
  set_terminal_size(stream.descriptor.native_handle(), size);
}

void OutputForwarder::Impl::watch_size() {
  if (!std::exchange(watches_size, true)) {
    asio::error_code ignored;
    resized.add(SIGWINCH, ignored);
  }
  resized.async_wait([weak = weak_from_this()](const asio::error_code& error, int) {
    const auto self = weak.lock();
    if (error || !self) return;
    for (const auto& weak_worker : self->streams) {
      const auto worker = weak_worker.lock();
      if (!worker) continue;
      for (OutputStream* stream : {&worker->out, &worker->err}) {
        if (stream->is_pty && stream->descriptor.is_open()) self->set_size(*stream);
      }
    }
    if (self->on_resized) self->on_resized();
    self->watch_size();
  });
}

void OutputForwarder::Impl::show_collapsed() {
  for (const auto& collapsing : {collapsing_out, collapsing_err}) {
    if (collapsing) collapsing->show_all();
  }
}

void OutputForwarder::Impl::write_line(const std::string& line, LineKind kind) {
  show_collapsed();
  const int color = err().colors() ? line_color(kind) : -1;
  err().add(this, "", colored(line, color) + "\n");
  err().write_some();
}

std::vector<OutputConsole*> OutputForwarder::Impl::consoles() const {
  std::vector<OutputConsole*> all = {out.get()};
  if (separate_err) all.push_back(separate_err.get());
  return all;
}

void OutputForwarder::Impl::check_written() {
  if (!when_written) return;
  const auto again = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->check_written();
  };
  for (OutputConsole* console : consoles()) {
    if (console->pending_bytes() > 0 && console->goes_on_alone()) {
      return console->when_written(again);
    }
  }
  for (const auto& file : files) {
    if (file->pending_bytes() > 0) return file->when_written(again);
  }
  if (tell_missing()) return check_written();
  asio::post(io, std::exchange(when_written, nullptr));
}

// True when there was anything to tell. Where both consoles are one, nobody is left to be told.
bool OutputForwarder::Impl::tell_missing() {
  if (!separate_err || told_missing) return false;
  const std::string of_out = out->told_elsewhere("stdout");
  const std::string of_err = separate_err->told_elsewhere("stderr");
  told_missing = !of_out.empty() || !of_err.empty();
  if (!of_out.empty()) write_line("[ddprun] " + of_out, LineKind::Warning);
  if (!of_err.empty()) {
    out->add(this, "", "[ddprun] " + of_err + "\n");
    out->write_some();
  }
  return told_missing;
}

OutputForwarder::OutputForwarder(asio::io_context& io, int console_out, int console_err)
    : impl_(std::make_shared<Impl>(io, console_out, console_err)) {
  // A reader that is gone, and a file that may not become larger (ulimit -f), are errors of write()
  // here, and must not end the launcher and its workers.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  for (OutputConsole* console : impl_->consoles()) {
    console->on_relieved([weak = std::weak_ptr<Impl>(impl_)] {
      if (const auto self = weak.lock()) self->resume();
    });
  }
}

OutputForwarder::~OutputForwarder() { flush(std::chrono::seconds(1)); }

void OutputForwarder::choose_colors(ColorWhen when, const std::optional<std::string>& no_color,
                                    const std::optional<std::string>& term) {
  for (OutputConsole* console : impl_->consoles()) {
    console->use_colors(use_color(when, console->is_terminal(), no_color, term));
  }
}

void OutputForwarder::on_resized(std::function<void()> handler) {
  impl_->on_resized = std::move(handler);
}

std::shared_ptr<OutputForwarder::Stream> OutputForwarder::add(const WorkerOutput& output,
                                                              UniqueFd out, UniqueFd err) {
  auto worker = std::make_shared<Stream>(impl_->io);
  worker->err.is_err = true;
  Impl::set_up(worker->out, output, std::move(out));
  Impl::set_up(worker->err, output, std::move(err));
  impl_->direct(worker->out, output);
  impl_->direct(worker->err, output);

  auto& streams = impl_->streams;
  streams.erase(std::remove_if(streams.begin(), streams.end(),
                               [](const auto& weak) { return weak.expired(); }),
                streams.end());
  streams.push_back(worker);
  if (output.pty && !impl_->watches_size) impl_->watch_size();
  impl_->watch(worker, worker->out);
  impl_->watch(worker, worker->err);
  return worker;
}

void OutputForwarder::redirect(Stream& worker, const WorkerOutput& output) {
  pump(worker);
  for (OutputStream* stream : {&worker.out, &worker.err}) {
    if (!stream->descriptor.is_open()) continue;
    stream->leave_destinations();
    impl_->direct(*stream, output);
  }
}

std::string OutputForwarder::last_stderr(const Stream& stream, int lines) {
  return stream.tail.last_lines(lines);
}

void OutputForwarder::forget_stderr(Stream& stream) { stream.tail = OutputTail{}; }

void OutputForwarder::pump(Stream& worker) {
  for (OutputStream* stream : {&worker.out, &worker.err}) {
    for (std::size_t bytes = impl_->bytes_read; impl_->bytes_read - bytes < drain_bytes_max;) {
      if (!impl_->read_once(worker, *stream)) break;
    }
  }
}

void OutputForwarder::drain(Stream& worker) {
  pump(worker);
  for (OutputStream* stream : {&worker.out, &worker.err}) {
    if (stream->descriptor.is_open()) stream->end();
  }
}

std::shared_ptr<BackgroundWriter> OutputForwarder::add_file(command_line::WriteCall write,
                                                            std::function<void(int)> on_failed,
                                                            std::function<void(int)> on_refused) {
  return impl_->add_file(std::move(write), std::move(on_failed), std::move(on_refused));
}

bool OutputForwarder::flush(std::chrono::milliseconds stuck_limit) {
  impl_->show_collapsed();
  bool done = true;
  for (OutputConsole* console : impl_->consoles()) done = console->flush(stuck_limit) && done;
  for (const auto& file : impl_->files) {
    // Where one is stuck, so are its neighbours: once is enough.
    done = file->wait(done ? stuck_limit : std::chrono::milliseconds{0}) && done;
  }
  return impl_->tell_missing() ? flush(stuck_limit) && done : done;
}

OutputForwarder::Pending OutputForwarder::pending() const {
  Pending pending;
  for (const OutputConsole* console : impl_->consoles()) {
    (console->is_file() ? pending.files : pending.readers) += console->pending_bytes();
  }
  for (const auto& file : impl_->files) pending.logs += file->pending_bytes();
  return pending;
}

void OutputForwarder::when_written(std::function<void()> handler) {
  impl_->show_collapsed();
  for (OutputConsole* console : impl_->consoles()) console->write_some();
  impl_->when_written = std::move(handler);
  impl_->check_written();
}

std::size_t OutputForwarder::drop_pending() {
  std::size_t bytes = 0;
  for (OutputConsole* console : impl_->consoles()) bytes += console->drop();
  for (const auto& file : impl_->files) bytes += file->drop();
  return bytes;
}

bool OutputForwarder::stderr_is_free() const {
  return impl_->separate_err && impl_->separate_err->pending_bytes() == 0;
}

OutputConsole& OutputForwarder::console(bool is_err) { return is_err ? impl_->err() : *impl_->out; }

void OutputForwarder::write_line(const std::string& line, LineKind kind) {
  impl_->write_line(line, kind);
}

}  // namespace ddprun::launcher
