// The kernel tells of a pipe or socket that nobody holds the other end of without being asked
// (EPOLLERR, EPOLLHUP), so a quiet job costs no timer.
#include "launcher/session.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace ddprun::launcher {
namespace {

// What sshd closes one after the other, and its end, may be seen one after the other, too.
constexpr std::chrono::seconds look_again{1};

bool hung_up(int fd) {
  pollfd asked{fd, 0, 0};
  return ::poll(&asked, 1, 0) > 0 && (asked.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

bool session_is_lost(const SessionFacts& facts) {
  return facts.output_gone && (facts.input_gone || facts.parent_gone);
}

Session::Session(asio::io_context& io, std::function<void()> on_lost)
    : timer_(io), outputs_(io), on_lost_(std::move(on_lost)) {}

void Session::watch() {
  if (::isatty(STDOUT_FILENO) != 0 || ::isatty(STDERR_FILENO) != 0) return;
  parent_ = ::getppid();
  input_was_open_ = ::isatty(STDIN_FILENO) == 0 && !hung_up(STDIN_FILENO);
  // An epoll of its own, since asio would set O_NONBLOCK on what it is given, and we share these
  // descriptors with whoever gave them.
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  if (poller < 0) return;
  outputs_.assign(poller);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    epoll_event nothing_else{};
    if (::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &nothing_else) != 0) return;  // A file.
  }
  wait_for_hang_up();
}

SessionFacts Session::facts() const {
  return {.output_gone = hung_up(STDOUT_FILENO) && hung_up(STDERR_FILENO),
          .input_gone = input_was_open_ && hung_up(STDIN_FILENO),
          .parent_gone = ::getppid() != parent_};
}

void Session::wait_for_hang_up() {
  outputs_.async_wait(asio::posix::stream_descriptor::wait_read,
                      [this](const asio::error_code& error) {
                        if (!error) look();
                      });
}

// An end that has hung up stays so: from then on only a timer tells of the rest.
void Session::look() {
  if (session_is_lost(facts())) return on_lost_();
  timer_.expires_after(look_again);
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) look();
  });
}

}  // namespace ddprun::launcher
