// Where lines of writers meet, and how they are passed on without waiting.
#include "launcher/output/console.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cerrno>
#include <utility>

#include "launcher/output/console_target.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t congested_from = BackgroundWriter::congested_bytes;
constexpr std::size_t relieved_below = BackgroundWriter::relieved_bytes;
constexpr std::size_t bar_bytes_max = 4096;  // A longer "progress bar" is not one.
constexpr std::string_view erase_line = "\r\033[K";

}  // namespace

OutputConsole::OutputConsole(asio::io_context& io, int fd, command_line::WriteCall write)
    : io_(io), fd_(fd) {
  ConsoleTarget target = console_target(fd);
  broken_ = !target.write;
  terminal_ = target.is_terminal;
  file_ = target.is_file;
  target_ = std::make_shared<command_line::GapWriter>(
      write ? std::move(write) : std::move(target.write), "[ddprun]");
  if (!target.may_hang) return;
  background_ = std::make_unique<BackgroundWriter>(
      io, [shared = target_](std::string_view text) { return shared->write(text); },
      BackgroundWriter::Events{.on_relieved =
                                   [this, alive = alive_] {
                                     if (*alive && relieved_) relieved_();
                                   },
                               .on_failed =
                                   [this, alive = alive_](int) {
                                     if (*alive) broken_ = true;
                                   }});
}

OutputConsole::~OutputConsole() { *alive_ = false; }

bool OutputConsole::same_target(int fd, int other_fd) {
  struct stat one {
  }, other{};
  if (::fstat(fd, &one) != 0 || ::fstat(other_fd, &other) != 0) return false;
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

void OutputConsole::add(const void* writer, std::string_view prefix, std::string_view text) {
  if (text.empty() || broken_) return;
  const bool line_start = open_line_writer_ != writer;
  if (line_start && open_line_writer_ != nullptr) start_line();
  const std::size_t begin = text_.size();
  append(prefix, text, line_start);
  if (terminal_ && writer == bar_writer_ && text.ends_with(erase_line)) return wipe_line();
  end_text(writer, begin);
}

// The writer has wiped its row, and may say no more: its prefix alone would be left.
void OutputConsole::wipe_line() {
  text_ += erase_line;
  open_line_writer_ = nullptr;
  bar_.clear();
}

// Another writer's line is unfinished. A progress bar on a terminal makes room and is drawn again
// below (end_text); anything else stays where it is.
void OutputConsole::start_line() {
  if (!bar_.empty() && open_line_writer_ == bar_writer_) {
    text_ += erase_line;
  } else {
    text_ += '\n';
  }
}

void OutputConsole::end_text(const void* writer, std::size_t begin) {
  const bool ended = text_.back() == '\n';
  open_line_writer_ = ended ? nullptr : writer;
  if (writer == bar_writer_) {
    bar_.clear();
    if (ended) {
      bar_writer_ = nullptr;
    } else if (terminal_) {
      const std::size_t redraw = text_.rfind('\r');
      const bool whole = redraw != text_.npos && redraw >= begin;
      if (whole && text_.size() - redraw <= bar_bytes_max) bar_ = text_.substr(redraw + 1);
    }
  } else if (ended && !bar_.empty()) {
    text_ += bar_;
    open_line_writer_ = bar_writer_;
  }
}

void OutputConsole::append(std::string_view prefix, std::string_view text, bool line_start) {
  if (prefix.empty()) {
    text_ += text;
    return;
  }
  const bool may_redraw = text.find('\r') != text.npos;  // Rare, and then slower.
  while (!text.empty()) {
    const bool redraws = text[0] == '\r' && !(text.size() > 1 && text[1] == '\n');
    if (redraws) {
      text_ += '\r';
      text.remove_prefix(1);
    }
    if (line_start || redraws) text_ += prefix;
    // Up to and with the line's end, or up to the next redraw.
    std::size_t end = may_redraw ? text.find_first_of("\r\n") : text.find('\n');
    while (end != text.npos && text[end] == '\r' && end + 1 < text.size() &&
           text[end + 1] == '\n') {
      ++end;
    }
    if (end != text.npos && text[end] == '\n') ++end;
    end = std::min(end, text.size());
    text_ += text.substr(0, end);
    line_start = end > 0 && text[end - 1] == '\n';
    text.remove_prefix(end);
  }
}

bool OutputConsole::may_redraw(const void* writer, int rank) const {
  return bar_writer_ == nullptr || bar_writer_ == writer || rank <= bar_rank_;
}

void OutputConsole::claim_redraw(const void* writer, int rank) {
  if (bar_writer_ != writer) bar_.clear();
  bar_writer_ = writer;
  bar_rank_ = rank;
}

void OutputConsole::forget(const void* writer) {
  // The address may be used again by another writer, which must not continue this line.
  if (open_line_writer_ == writer && writer != nullptr) open_line_writer_ = this;
  if (bar_writer_ == writer) {
    bar_writer_ = nullptr;
    bar_.clear();
  }
}

std::size_t OutputConsole::pending_bytes() const {
  return text_.size() - written_ + (background_ ? background_->pending_bytes() : 0);
}

void OutputConsole::hand_over() {
  if (broken_) text_.clear();
  background_->take(text_);
}

void OutputConsole::write_some() {
  if (background_) return hand_over();
  while (pending_bytes() > 0 && !broken_) {
    const command_line::Written written = target_->write(std::string_view(text_).substr(written_));
    written_ += written.bytes;
    if (written.error == EAGAIN || written.error == EWOULDBLOCK) break;
    broken_ = written.error != 0;
  }
  if (broken_ || pending_bytes() == 0) {
    text_.clear();
    written_ = 0;
  } else if (written_ >= relieved_below) {
    text_.erase(0, written_);
    written_ = 0;
  }
  if (pending_bytes() > 0) wait_until_writable();
  if (pending_bytes() >= congested_from) was_congested_ = true;
  if (was_congested_ && pending_bytes() <= relieved_below) {
    was_congested_ = false;
    if (relieved_) asio::post(io_, [handler = relieved_] { handler(); });
  }
  if (pending_bytes() == 0 && written_out_) asio::post(io_, std::exchange(written_out_, nullptr));
}

void OutputConsole::when_written(std::function<void()> handler) {
  if (background_) return background_->when_written(std::move(handler));
  written_out_ = std::move(handler);
}

std::string OutputConsole::told_elsewhere(std::string_view name) const {
  const std::size_t missing = target_->missing_bytes();
  if (missing == 0) return "";
  return fmt::format("{} bytes of output are missing on {}: {}", missing, name, target_->reason());
}

std::size_t OutputConsole::drop() {
  const std::size_t dropped = pending_bytes();
  if (background_) background_->drop();
  text_.clear();
  written_ = 0;
  bar_.clear();
  bar_writer_ = nullptr;
  // The console's last byte may stand anywhere in a line: this makes the next writer start one.
  if (dropped > 0) open_line_writer_ = this;
  return dropped;
}

// An epoll of its own holds fd_, and asio waits for that: asio would set O_NONBLOCK on whatever it
// is given.
void OutputConsole::wait_until_writable() {
  if (waiting_) return;
  if (!writable_) {
    const int poller = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLOUT;
    if (poller < 0 || ::epoll_ctl(poller, EPOLL_CTL_ADD, fd_, &event) != 0) {
      if (poller >= 0) ::close(poller);
      return;  // Out of descriptors: the next write_some() or flush() tries again.
    }
    writable_ = std::make_unique<asio::posix::stream_descriptor>(io_, poller);
  }
  waiting_ = true;
  writable_->async_wait(asio::posix::stream_descriptor::wait_read,
                        [this, alive = alive_](const asio::error_code& error) {
                          if (error || !*alive) return;
                          waiting_ = false;
                          write_some();
                        });
}

bool OutputConsole::flush(std::chrono::milliseconds stuck_limit) {
  if (background_) {
    hand_over();
    return background_->wait(stuck_limit);
  }
  for (;;) {
    const std::size_t before = pending_bytes();
    write_some();
    if (pending_bytes() == 0) return true;
    if (pending_bytes() < before) continue;
    pollfd writable{fd_, POLLOUT, 0};
    const int ready = ::poll(&writable, 1, static_cast<int>(stuck_limit.count()));
    if (ready == 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool OutputConsole::congested() const { return pending_bytes() >= congested_from; }

}  // namespace ddprun::launcher
