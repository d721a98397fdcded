// Read byte by byte until the job begins: what follows a line belongs to somebody else, and the
// secret must not lie in a buffer that is forgotten.
#include "launcher/hosts/node_channel.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/buffer.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "command_line/write_all.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using rendezvous::UniqueFd;

constexpr std::size_t request_bytes_max = 64 << 20;  // Far above what execve takes.
constexpr std::size_t secret_bytes_max = 8192;
constexpr int above_workers = 10;  // Descriptors up to 6 mean something to workers.

[[noreturn]] void no_starter(const std::string& what) {
  throw std::runtime_error("this is the launcher of one node, started by ddprun -H, and " + what);
}

// Best effort: where it fails nobody is there to hear it. It blocks for as long as the pipe is full
// of what workers have written and nobody reads.
void write_out(const std::string& line) { command_line::write_all(STDOUT_FILENO, line); }

// What stdin was; /dev/null is in its place.
UniqueFd take_stdin() {
  UniqueFd taken = rendezvous::duplicate(STDIN_FILENO, above_workers);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing || ::dup2(nothing.get(), STDIN_FILENO) < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot put /dev/null in its place");
  }
  return taken;
}

// One byte, or -1 at the end.
int read_byte(int fd) {
  unsigned char byte = 0;
  for (;;) {
    const ssize_t count = ::read(fd, &byte, 1);
    if (count == 1) return byte;
    if (count < 0 && errno == EINTR) continue;
    return -1;
  }
}

}  // namespace

NodeChannel::NodeChannel(const std::string& version) {
  try {
    fd_ = take_stdin();
  } catch (const std::system_error& error) {
    no_starter(std::string("cannot take its stdin over: ") + error.what());
  }
  const char* connection = std::getenv("SSH_CONNECTION");
  write_out(to_line(
      NodeHello{.version = version, .ssh_connection = connection != nullptr ? connection : ""}));
  const auto request = read_request(read_line_of_stdin(request_bytes_max));
  if (!request) no_starter("was told nothing that it understands");
  request_ = *request;
  if (request_.has_secret) take_secret();
}

std::string NodeChannel::read_line_of_stdin(std::size_t bytes_max) const {
  std::string line;
  for (int byte = 0; (byte = read_byte(fd_.get())) != '\n';) {
    if (byte < 0) no_starter("that one is gone");
    if (line.size() == bytes_max) no_starter("was told too much");
    line += static_cast<char>(byte);
  }
  return line;
}

// Straight into a pipe, from which it is read once.
void NodeChannel::take_secret() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    no_starter(std::string("has no pipe for the job's secret: ") + std::strerror(errno));
  }
  secret_fd_.reset(ends[0]);
  const UniqueFd to_reader(ends[1]);
  std::size_t size = 0;
  for (int byte = 0; (byte = read_byte(fd_.get())) != '\n'; ++size) {
    if (byte < 0) no_starter("that one is gone");
    if (size == secret_bytes_max) {
      no_starter("was given a secret of more than " + std::to_string(secret_bytes_max) + " bytes");
    }
    const auto letter = static_cast<char>(byte);
    command_line::write_all(to_reader.get(), {&letter, 1});
  }
}

void NodeChannel::watch(asio::io_context& io, std::function<void(int signal)> on_signal,
                        std::function<void()> on_gone) {
  on_signal_ = std::move(on_signal);
  on_gone_ = std::move(on_gone);
  // Its own copy: closing it must leave fd_ to the destructor.
  auto input = std::make_unique<asio::posix::stream_descriptor>(io);
  rendezvous::hand_over(rendezvous::duplicate(fd_.get(), above_workers), *input);
  input_ = std::move(input);  // Where that fails it goes before `io` does.
  wait();
}

void NodeChannel::wait() {
  input_->async_read_some(
      asio::buffer(buffer_), [this](const asio::error_code& error, std::size_t size) {
        if (error == asio::error::operation_aborted) return;
        if (error) return on_gone_();
        received_.append(buffer_.data(), size);
        for (std::size_t end = 0; (end = received_.find('\n')) != received_.npos;) {
          if (const auto signal = read_signal(std::string_view(received_).substr(0, end))) {
            on_signal_(*signal);
          }
          received_.erase(0, end + 1);
        }
        if (received_.size() > buffer_.size()) received_.clear();  // No word of ours is that long.
        wait();
      });
}

void NodeChannel::say_opened(int port) const { write_out(opened_line(request_.mark, port)); }

void NodeChannel::say_begun() const { write_out(begun_line(request_.mark)); }

void NodeChannel::say_end() const {
  if (end_) write_out(to_line(request_.mark, *end_));
}

}  // namespace ddprun::launcher
