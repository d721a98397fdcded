// The stream is told that all went well, whatever came of it: it would not ask again.
#include "trainer/report/steady_output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

#include "trainer/report/append.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t unflushed_bytes_max = 4096;

}  // namespace

std::string SteadyOutput::finish(std::string_view name) {
  const std::lock_guard lock(mutex_);
  write_out();
  // Where nobody reads any more, nothing is missing to anybody.
  if (missing_ == 0 || tell_gap() || error_ == EPIPE) return "";
  return fmt::format("{} bytes of {} are missing: {}", missing_, name, std::strerror(error_));
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
  if (text.empty()) return;
  missing_ += missing_ > 0 && !tell_gap() ? text.size() : put(text);
}

// Whose line goes first, and counts as told when all of it was taken.
bool SteadyOutput::tell_gap() {
  const std::string note = fmt::format("{}train: {} bytes of output are missing here: {}\n",
                                       line_start_ ? "" : "\n", missing_, std::strerror(error_));
  if (put(note) > 0) return false;
  missing_ = 0;
  return true;
}

// How many bytes were not taken.
std::size_t SteadyOutput::put(std::string_view text) {
  Appended done = append(fd_, text);
  while (done.error == EAGAIN && waits_for_reader()) {
    const Appended more = append(fd_, text.substr(done.bytes));
    done = {done.bytes + more.bytes, more.error};
  }
  if (done.bytes > 0) line_start_ = text[done.bytes - 1] == '\n';
  if (done.error != 0) error_ = done.error;
  if (done.error == 0) stalled_ = false;
  return text.size() - done.bytes;
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
