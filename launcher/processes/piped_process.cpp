// Its end is that of the process, and not of its pipes: what a ProxyCommand leaves behind may hold
// stderr open for hours, as may a master connection, where the user's ssh options ask for one.
#include "launcher/processes/piped_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using rendezvous::UniqueFd;

constexpr std::chrono::milliseconds held_pause{100};

struct Ends {
  UniqueFd read, write;
};

std::optional<Ends> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  return Ends{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

PipedProcess::PipedProcess(asio::io_context& io, Events events)
    : events_(std::move(events)), to_child_(io), ended_(io), held_(io), out_(io), err_(io) {}

PipedProcess::~PipedProcess() {
  ended_.release();  // The child's own.
  if (!child_) return;
  child_->send_to_group(SIGKILL);
  child_->send(SIGKILL);
}

int PipedProcess::start(const std::vector<std::string>& argv,
                        const std::vector<std::string>& environment) {
  auto in = make_pipe(), out = make_pipe(), err = make_pipe();
  if (!in || !out || !err) return errno;
  ChildSetup setup;
  setup.argv = argv;
  setup.environment = environment;
  setup.stdin_fd = in->read.get();
  setup.stdout_fd = out->write.get();
  setup.stderr_fd = err->write.get();
  int error = 0;
  child_ = ChildProcess::spawn(setup, error);
  if (!child_) return error;
  to_child_.assign(in->write.release());
  out_.descriptor.assign(out->read.release());
  err_.descriptor.assign(err->read.release());
  ended_.assign(child_->pidfd());
  read(out_, events_.on_out);
  read(err_, events_.on_err);
  wait_for_end();
  return 0;
}

void PipedProcess::read(Input& input, const std::function<void(std::string_view)>& take) {
  input.paused = !events_.may_read();
  if (input.paused || !input.descriptor.is_open()) return;
  input.descriptor.async_read_some(
      asio::buffer(input.buffer),
      [this, &input, &take](const asio::error_code& error, std::size_t size) {
        if (error) return;
        take({input.buffer.data(), size});
        read(input, take);
      });
}

void PipedProcess::go_on() {
  if (out_.paused) read(out_, events_.on_out);
  if (err_.paused) read(err_, events_.on_err);
}

// What is in the pipe when the process has ended; others may hold its other end.
void PipedProcess::read_rest(Input& input, const std::function<void(std::string_view)>& take) {
  if (!input.descriptor.is_open()) return;
  asio::error_code error;
  input.descriptor.non_blocking(true, error);
  while (!error) {
    const std::size_t size = input.descriptor.read_some(asio::buffer(input.buffer), error);
    if (!error && size > 0) take({input.buffer.data(), size});
  }
  input.descriptor.close(error);
}

void PipedProcess::wait_for_end() {
  ended_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [this](const asio::error_code& error) {
                      if (error) return;
                      const auto status = child_->reap();
                      if (!status) return wait_again();
                      ended_.release();
                      close_input();
                      read_rest(out_, events_.on_out);
                      read_rest(err_, events_.on_err);
                      events_.on_end(*status);
                    });
}

// A debugger holds it, and its descriptor stays readable meanwhile: to wait for that would be to
// spin. When it can be reaped nothing tells but SIGCHLD, which is not ours.
void PipedProcess::wait_again() {
  held_.expires_after(held_pause);
  held_.async_wait([this](const asio::error_code& error) {
    if (!error) wait_for_end();
  });
}

void PipedProcess::send(std::shared_ptr<const void> owner, std::string_view bytes) {
  if (!to_child_.is_open()) return;
  to_write_.emplace_back(std::move(owner), bytes);
  if (to_write_.size() == 1) write_next();
}

void PipedProcess::send(std::string text) {
  auto owned = std::make_shared<const std::string>(std::move(text));
  send(owned, *owned);
}

void PipedProcess::write_next() {
  const std::string_view bytes = to_write_.front().second;
  asio::async_write(to_child_, asio::buffer(bytes.data(), bytes.size()),
                    [this](const asio::error_code& error, std::size_t) {
                      if (error || to_write_.empty()) return;
                      to_write_.pop_front();
                      if (!to_write_.empty()) write_next();
                    });
}

void PipedProcess::close_input() {
  asio::error_code ignored;
  to_child_.close(ignored);
  to_write_.clear();
}

void PipedProcess::kill() {
  if (child_) child_->send_to_group(SIGKILL);
}

}  // namespace ddprun::launcher
