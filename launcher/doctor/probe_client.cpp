// Plain sockets and poll(): one connection at a time, each wait with an end of its own.
#include "launcher/doctor/probe_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using rendezvous::UniqueFd;
using std::chrono::milliseconds;

constexpr milliseconds measured_for{300};

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

class Way {
 public:
  Way(const ProbeAsk& ask, int owner_fd)
      : ask_(ask),
        owner_fd_(owner_fd),
        most_(static_cast<int>(std::min(ask.timeout_s, 600.0) * 1e3)) {}

  PairFacts measure();

 private:
  using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

  // False when the time is up.
  bool wait(int fd, short events, Clock::time_point until) const;
  Reached reach(int port, UniqueFd& out);
  Reached connect_to(const addrinfo& address, UniqueFd& out);
  bool greet(const UniqueFd& socket);
  void talk(const UniqueFd& socket);
  std::optional<char> receive(int fd, Clock::time_point until) const;
  // How many bytes went.
  std::size_t send(int fd, std::size_t size, Clock::time_point until) const;
  Reached fail(Reached kind, const char* words) {
    facts_.words = words;
    return kind;
  }

  const ProbeAsk& ask_;
  const int owner_fd_;
  const milliseconds most_;
  PairFacts facts_;
};

bool Way::wait(int fd, short events, Clock::time_point until) const {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(until - Clock::now()) + milliseconds(1);
    if (left <= milliseconds(0)) return false;
    std::array<pollfd, 2> both{{{fd, events, 0}, {owner_fd_, POLLRDHUP, 0}}};
    const int ready = ::poll(both.data(), both.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return false;
    // Whoever asked is gone, and nobody waits for the answer.
    if (ready > 0 && (both[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) std::_Exit(0);
    if (ready > 0 && both[0].revents != 0) return true;
  }
}

Reached reached_by(int error) {
  switch (error) {
    case 0:
      return Reached::Yes;
    case ECONNREFUSED:
      return Reached::Refused;
    case ETIMEDOUT:
      return Reached::NoAnswer;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EACCES:
    case EPERM:
      return Reached::NoRoute;
    default:
      return Reached::Failed;
  }
}

Reached Way::connect_to(const addrinfo& address, UniqueFd& out) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail(Reached::Failed, std::strerror(errno));
  const int yes = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  int error = ::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (!wait(socket.get(), POLLOUT, Clock::now() + most_)) {
      return fail(Reached::NoAnswer, "no answer");
    }
    socklen_t size = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) return fail(reached_by(error), std::strerror(error));
  out = std::move(socket);
  return Reached::Yes;
}

Reached Way::reach(int port, UniqueFd& out) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(ask_.address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0) return fail(Reached::NoName, ::gai_strerror(error));
  const Addresses owner(found, ::freeaddrinfo);
  Reached reached = Reached::Failed;
  // A name's second address may be the right one, as "::1" before "127.0.0.1".
  int tries = 0;
  for (const addrinfo* one = found; one != nullptr && tries < 2; one = one->ai_next, ++tries) {
    reached = connect_to(*one, out);
    if (reached == Reached::Yes) break;
  }
  if (reached != Reached::Yes) return reached;
  return greet(out) ? Reached::Yes : fail(Reached::Stranger, "it does not know us");
}

std::optional<char> Way::receive(int fd, Clock::time_point until) const {
  for (;;) {
    char byte = 0;
    const ssize_t size = ::recv(fd, &byte, 1, 0);
    if (size == 1) return byte;
    if (size == 0 || (errno != EAGAIN && errno != EINTR)) return std::nullopt;
    if (!wait(fd, POLLIN, until)) return std::nullopt;
  }
}

std::size_t Way::send(int fd, std::size_t size, Clock::time_point until) const {
  static const std::vector<char> zeros(probe_talk::large_bytes);
  std::size_t sent = 0;
  while (sent < size && Clock::now() < until) {
    const ssize_t went =
        ::send(fd, zeros.data(), std::min(size - sent, zeros.size()), MSG_NOSIGNAL);
    if (went > 0) {
      sent += static_cast<std::size_t>(went);
      continue;
    }
    const bool failed = went < 0 && errno != EAGAIN && errno != EINTR;
    if (failed || !wait(fd, POLLOUT, until)) break;
  }
  return sent;
}

bool Way::greet(const UniqueFd& socket) {
  const std::string greeting = "ddprun-doctor " + ask_.token + "\n";
  const ssize_t went = ::send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
  if (went != static_cast<ssize_t>(greeting.size())) return false;
  return receive(socket.get(), Clock::now() + most_) == probe_talk::accepted;
}

void Way::talk(const UniqueFd& socket) {
  const int fd = socket.get();
  std::vector<double> trips;
  for (std::size_t i = 0; i < probe_talk::echoes; ++i) {
    const auto begin = Clock::now();
    if (send(fd, 1, begin + most_) != 1 || !receive(fd, begin + most_)) {
      facts_.ephemeral = fail(Reached::Failed, "the connection broke off");
      return;
    }
    trips.push_back(seconds(Clock::now() - begin));
  }
  const auto middle = trips.begin() + std::ssize(trips) / 2;
  std::nth_element(trips.begin(), middle, trips.end());
  facts_.latency_s = *middle;
  auto begin = Clock::now();
  const std::size_t large = send(fd, probe_talk::large_bytes, begin + most_);
  if (large != probe_talk::large_bytes || receive(fd, begin + most_) != probe_talk::large_arrived) {
    facts_.large_stalled = true;
    return;
  }
  begin = Clock::now();
  std::size_t bytes = 0;
  while (Clock::now() < begin + measured_for) {
    const std::size_t went = send(fd, probe_talk::large_bytes, begin + measured_for);
    bytes += went;
    if (went == 0) break;
  }
  ::shutdown(fd, SHUT_WR);
  if (receive(fd, Clock::now() + most_) == probe_talk::all_arrived && bytes > 0) {
    facts_.bytes_per_s = static_cast<double>(bytes) / seconds(Clock::now() - begin);
  }
}

PairFacts Way::measure() {
  if (ask_.rendezvous_port != 0) {
    UniqueFd socket;
    facts_.rendezvous = reach(ask_.rendezvous_port, socket);
  }
  if (ask_.ephemeral_port == 0) return facts_;
  UniqueFd socket;
  facts_.ephemeral = reach(ask_.ephemeral_port, socket);
  if (facts_.ephemeral == Reached::Yes) talk(socket);
  return facts_;
}

}  // namespace

PairFacts measure_way(const ProbeAsk& ask, int owner_fd) { return Way(ask, owner_fd).measure(); }

}  // namespace ddprun::launcher
