// The stream is told that all went well, whatever came of it: it would not ask again.
#include "trainer/report/steady_output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <utility>

#include "command_line/write_all.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t unflushed_bytes_max = 4096;

// Some of it, or an error: EAGAIN where the descriptor does not wait for its reader.
command_line::WriteCall write_to(int fd) {
  return [fd](std::string_view text) {
    const command_line::Written done = command_line::write_all(fd, text);
    return done.bytes > 0 ? command_line::Written{done.bytes, 0} : done;
  };
}

}  // namespace

SteadyOutput::SteadyOutput(int fd, std::chrono::milliseconds reader_limit)
    : fd_(fd), reader_limit_(reader_limit), writer_(write_to(fd), "train:") {}

std::string SteadyOutput::finish(std::string_view name) {
  const std::lock_guard lock(mutex_);
  write_out();
  if (writer_.tell()) return "";
  return fmt::format("{} bytes of {} are missing: {}", writer_.missing_bytes(), name,
                     writer_.reason());
}

SteadyOutput::int_type SteadyOutput::overflow(int_type letter) {
  if (traits_type::eq_int_type(letter, traits_type::eof())) return traits_type::not_eof(letter);
  const char one = traits_type::to_char_type(letter);
  const std::lock_guard lock(mutex_);
  add({&one, 1});
  return letter;
}

std::streamsize SteadyOutput::xsputn(const char* letters, std::streamsize count) {
  const std::lock_guard lock(mutex_);
  add({letters, static_cast<std::size_t>(count)});
  return count;
}

int SteadyOutput::sync() {
  const std::lock_guard lock(mutex_);
  write_out();
  return 0;
}

void SteadyOutput::add(std::string_view letters) {
  text_ += letters;
  if (text_.size() >= unflushed_bytes_max) write_out();
}

void SteadyOutput::write_out() {
  const std::string text = std::exchange(text_, "");
  for (std::string_view left = text; !left.empty();) {
    const command_line::Written written = writer_.write(left);
    left.remove_prefix(written.bytes);
    if (written.error == 0) {
      stalled_ = false;
    } else if (written.error != EAGAIN) {
      return;  // Nobody reads any more, and nothing is missing to anybody.
    } else if (!waits_for_reader()) {
      writer_.lose(left, EAGAIN);
      return;
    }
  }
}

// Whoever has the other end of a terminal may have made it one that does not wait.
bool SteadyOutput::waits_for_reader() {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  const auto end = steady_clock::now() + (stalled_ ? milliseconds(0) : reader_limit_);
  pollfd reader{fd_, POLLOUT, 0};
  int ready = 0;
  do {
    const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
    ready = ::poll(&reader, 1, static_cast<int>(std::max(left, milliseconds(0)).count()));
  } while (ready < 0 && errno == EINTR);
  stalled_ = ready <= 0;
  return !stalled_;
}

SteadyConsole::SteadyConsole() : out_(STDOUT_FILENO), errors_(STDERR_FILENO) {
  // No stream flushes it any more, and NCCL prints to it what it warns of.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  std::cout.flush();
  std::cout.rdbuf(&out_);
  std::cerr.rdbuf(&errors_);
}

void SteadyConsole::finish() {
  const std::string missing = out_.finish("stdout");
  if (!missing.empty()) std::cerr << "train: warning: " + missing + "\n";
  errors_.finish("stderr");
}

}  // namespace ddprun::trainer
