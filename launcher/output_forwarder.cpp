// See output_forwarder.h.
#include "launcher/output_forwarder.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "launcher/output_console.h"
#include "launcher/output_lines.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kReadBytes = 256 << 10;
constexpr std::size_t kTailBytes = 8 << 10;
// More than any pipe holds: drain() must end though a grandchild goes on writing.
constexpr std::size_t kDrainBytesMax = 2 << 20;

// One stream of one worker.
struct Pipe {
  explicit Pipe(asio::io_context& io) : descriptor(io) {}
  ~Pipe() {
    if (file_fd >= 0) ::close(file_fd);
  }

  asio::posix::stream_descriptor descriptor;  // Closed: not piped, or ended.
  OutputConsole* console = nullptr;           // Null: not shown.
  std::string prefix;
  std::string file;
  int file_fd = -1;
  OutputLines lines;
  bool paused = false;  // Not read until the console has caught up.
};

// All of it; the errno of the failure otherwise.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// What a terminal shows of a line that was redrawn with '\r'.
std::string_view visible_part(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t redraw = line.rfind('\r');
  return redraw == line.npos ? line : line.substr(redraw + 1);
}

}  // namespace

class OutputForwarder::Stream {
 public:
  explicit Stream(asio::io_context& io) : out(io), err(io) {}
  Pipe out;
  Pipe err;
  std::string tail;  // The end of what came through err.
};

struct OutputForwarder::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io_context, int console_out, int console_err)
      : io(io_context), out(std::make_unique<OutputConsole>(io, console_out)), buffer(kReadBytes) {
    // One console when both lead to the same place, or a half-written line would be interrupted.
    if (!OutputConsole::same_target(console_out, console_err)) {
      separate_err = std::make_unique<OutputConsole>(io, console_err);
    }
  }

  OutputConsole& err() { return separate_err ? *separate_err : *out; }
  void watch(const std::shared_ptr<Stream>& stream, Pipe& pipe);
  bool read_once(Stream& stream, Pipe& pipe);
  void take(Stream& stream, Pipe& pipe, std::string_view bytes);
  void write_file(Pipe& pipe, std::string_view bytes);
  void end(Pipe& pipe);
  void resume();
  void write_line(const std::string& line);

  asio::io_context& io;
  std::unique_ptr<OutputConsole> out;
  std::unique_ptr<OutputConsole> separate_err;
  std::vector<char> buffer;  // For every read: what is read is passed on at once.
  std::vector<std::weak_ptr<Stream>> streams;
};

void OutputForwarder::Impl::watch(const std::shared_ptr<Stream>& stream, Pipe& pipe) {
  if (!pipe.descriptor.is_open()) return;
  pipe.descriptor.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [weak = weak_from_this(), stream, &pipe](const asio::error_code& error) {
        const auto self = weak.lock();
        if (error || !self || !pipe.descriptor.is_open()) return;
        if (pipe.console != nullptr && pipe.console->congested()) {
          pipe.paused = true;
          return;
        }
        self->read_once(*stream, pipe);
        self->watch(stream, pipe);
      });
}

// False when nothing more can be read now.
bool OutputForwarder::Impl::read_once(Stream& stream, Pipe& pipe) {
  if (!pipe.descriptor.is_open()) return false;
  const ssize_t count = ::read(pipe.descriptor.native_handle(), buffer.data(), buffer.size());
  if (count > 0) {
    take(stream, pipe, {buffer.data(), static_cast<std::size_t>(count)});
    return true;
  }
  if (count < 0 && errno == EINTR) return true;
  if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) end(pipe);
  return false;
}

void OutputForwarder::Impl::take(Stream& stream, Pipe& pipe, std::string_view bytes) {
  write_file(pipe, bytes);
  if (&pipe == &stream.err) {
    const std::string_view end = bytes.substr(bytes.size() - std::min(bytes.size(), kTailBytes));
    stream.tail += end;
    if (stream.tail.size() > 2 * kTailBytes) stream.tail.erase(0, stream.tail.size() - kTailBytes);
  }
  if (pipe.console == nullptr) return;
  const bool alone = pipe.prefix.empty() && streams.size() == 1;
  pipe.lines.add(bytes, alone,
                 [&](std::string_view text) { pipe.console->add(&pipe, pipe.prefix, text); });
  pipe.console->write_some();
}

void OutputForwarder::Impl::write_file(Pipe& pipe, std::string_view bytes) {
  if (pipe.file_fd < 0) return;
  if (const int error = write_all(pipe.file_fd, bytes)) {
    ::close(std::exchange(pipe.file_fd, -1));
    write_line("ddprun: cannot write the log file " + pipe.file + ": " + std::strerror(error) +
               "; the worker goes on without it");
  }
}

void OutputForwarder::Impl::end(Pipe& pipe) {
  asio::error_code ignored;
  pipe.descriptor.close(ignored);
  if (pipe.file_fd >= 0) ::close(std::exchange(pipe.file_fd, -1));
  if (pipe.console == nullptr) return;
  pipe.lines.finish([&](std::string_view text) { pipe.console->add(&pipe, pipe.prefix, text); });
  pipe.console->forget(&pipe);
  pipe.console->write_some();
}

void OutputForwarder::Impl::resume() {
  for (const auto& weak : streams) {
    const auto stream = weak.lock();
    if (!stream) continue;
    for (Pipe* pipe : {&stream->out, &stream->err}) {
      if (std::exchange(pipe->paused, false)) watch(stream, *pipe);
    }
  }
}

void OutputForwarder::Impl::write_line(const std::string& line) {
  err().add(this, "", line + "\n");
  err().write_some();
}

OutputForwarder::OutputForwarder(asio::io_context& io, int console_out, int console_err)
    : impl_(std::make_shared<Impl>(io, console_out, console_err)) {
  ::signal(SIGPIPE, SIG_IGN);
  for (OutputConsole* console : {impl_->out.get(), impl_->separate_err.get()}) {
    if (console == nullptr) continue;
    console->on_relieved([weak = std::weak_ptr<Impl>(impl_)] {
      if (const auto self = weak.lock()) self->resume();
    });
  }
}

OutputForwarder::~OutputForwarder() { flush(std::chrono::seconds(1)); }

std::shared_ptr<OutputForwarder::Stream> OutputForwarder::add(const WorkerOutput& output,
                                                              int out_fd, int err_fd) {
  auto stream = std::make_shared<Stream>(impl_->io);
  const auto set_up = [&](Pipe& pipe, const StreamOutput& wanted, OutputConsole& console, int fd) {
    if (fd < 0) return;
    pipe.descriptor.assign(fd);
    pipe.descriptor.native_non_blocking(true);
    if (wanted.console) pipe.console = &console;
    pipe.prefix = output.prefix;
    pipe.file = wanted.file;
  };
  set_up(stream->out, output.out, *impl_->out, out_fd);
  set_up(stream->err, output.err, impl_->err(), err_fd);
  for (Pipe* pipe : {&stream->out, &stream->err}) {
    if (pipe->descriptor.is_open() && !pipe->file.empty()) pipe->file_fd = open_log(pipe->file);
  }

  auto& streams = impl_->streams;
  streams.erase(std::remove_if(streams.begin(), streams.end(),
                               [](const auto& weak) { return weak.expired(); }),
                streams.end());
  streams.push_back(stream);
  impl_->watch(stream, stream->out);
  impl_->watch(stream, stream->err);
  return stream;
}

int OutputForwarder::open_log(const std::string& path) {
  std::error_code ignored;  // open() says what is wrong.
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot write the log file " + path);
  }
  return fd;
}

std::string OutputForwarder::last_stderr(const Stream& stream, int lines) {
  std::string_view text = stream.tail;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  text.remove_prefix(text.size() - std::min(text.size(), kTailBytes));
  std::vector<std::string_view> found;
  while (!text.empty() && found.size() < static_cast<std::size_t>(std::max(lines, 0))) {
    const std::size_t newline = text.rfind('\n');
    found.push_back(visible_part(newline == text.npos ? text : text.substr(newline + 1)));
    text = newline == text.npos ? std::string_view() : text.substr(0, newline);
  }
  std::string result;
  for (auto line = found.rbegin(); line != found.rend(); ++line) {
    if (!result.empty()) result += '\n';
    result += *line;
  }
  return result;
}

void OutputForwarder::pump(Stream& stream) {
  for (Pipe* pipe : {&stream.out, &stream.err}) {
    if (pipe->descriptor.is_open()) {
      for (std::size_t reads = 0; reads < kDrainBytesMax / kReadBytes; ++reads) {
        if (!impl_->read_once(stream, *pipe)) break;
      }
    }
  }
}

void OutputForwarder::drain(Stream& stream) {
  pump(stream);
  for (Pipe* pipe : {&stream.out, &stream.err}) {
    if (pipe->descriptor.is_open()) impl_->end(*pipe);
  }
}

bool OutputForwarder::flush(std::chrono::milliseconds stuck_limit) {
  const bool out_done = impl_->out->flush(stuck_limit);
  return (!impl_->separate_err || impl_->separate_err->flush(stuck_limit)) && out_done;
}

void OutputForwarder::write_line(const std::string& line) { impl_->write_line(line); }

}  // namespace ddprun::launcher
