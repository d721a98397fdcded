// A handful of connections at a time, and strangers for no longer than their first bytes take.
#include "launcher/doctor/probe_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "launcher/doctor/probe_client.h"
#include "launcher/machine/local_addresses.h"

namespace ddprun::launcher {
namespace {

using rendezvous::UniqueFd;

constexpr std::size_t guests_max = 32;
constexpr std::chrono::seconds guest_most{15};

// Both families by one socket where there are both; `port` 0: any, which is set.
UniqueFd listener_on(int& port, std::string& problem) {
  for (const int family : {AF_INET6, AF_INET}) {
    UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    const int yes = 1, no = 0;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    six.sin6_port = four.sin_port = htons(static_cast<std::uint16_t>(port));
    auto* address =
        family == AF_INET6 ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
    socklen_t size = family == AF_INET6 ? sizeof six : sizeof four;
    if (family == AF_INET6) {
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    }
    if (::bind(socket.get(), address, size) != 0 || ::listen(socket.get(), 16) != 0 ||
        ::getsockname(socket.get(), address, &size) != 0) {
      problem = std::strerror(errno);
      // A taken port is taken for both; IPv6 that is switched off says something else.
      if (errno == EADDRINUSE || errno == EACCES) return {};
      continue;
    }
    port = ntohs(family == AF_INET6 ? six.sin6_port : four.sin_port);
    return socket;
  }
  return {};
}

}  // namespace

Listening ProbeServer::listen(const std::string& token, int rendezvous_port) {
  token_ = token.substr(0, probe_talk::token_bytes_max);
  listeners_.clear();
  guests_.clear();
  Listening answer;
  if (rendezvous_port != 0) {
    int port = rendezvous_port;
    UniqueFd listener = listener_on(port, answer.problem);
    answer.has_rendezvous = static_cast<bool>(listener);
    if (listener) {
      listeners_.push_back(std::move(listener));
    } else {
      answer.holder = port_holder(rendezvous_port);
    }
  }
  int any = 0;
  UniqueFd listener = listener_on(any, answer.problem);
  if (!listener) return answer;
  answer.ephemeral_port = any;
  listeners_.push_back(std::move(listener));
  return answer;
}

void ProbeServer::add_to(std::vector<pollfd>& wanted) const {
  for (const UniqueFd& listener : listeners_) wanted.push_back({listener.get(), POLLIN, 0});
  for (const Guest& guest : guests_) wanted.push_back({guest.socket.get(), POLLIN, 0});
}

void ProbeServer::serve(const std::vector<pollfd>& ready) {
  const auto is_ready = [&](int fd) {
    return std::any_of(ready.begin(), ready.end(),
                       [&](const pollfd& one) { return one.fd == fd && one.revents != 0; });
  };
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(guests_, [&](Guest& guest) {
    return now - guest.since > guest_most || (is_ready(guest.socket.get()) && !serve(guest));
  });
  for (const UniqueFd& listener : listeners_) {
    if (is_ready(listener.get())) accept(listener.get());
  }
}

void ProbeServer::accept(int listener) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  if (guests_.size() >= guests_max) {  // Hosts of the visit speak at once.
    const auto oldest = std::find_if(guests_.begin(), guests_.end(),
                                     [](const Guest& guest) { return !guest.known; });
    if (oldest == guests_.end()) return;
    guests_.erase(oldest);
  }
  const int yes = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  guests_.push_back({std::move(socket), std::chrono::steady_clock::now(), "", false, 0});
}

bool ProbeServer::serve(Guest& guest) {
  if (!guest.known) return greet(guest);
  static std::array<char, 256 << 10> buffer;
  const ssize_t size = ::recv(guest.socket.get(), buffer.data(), buffer.size(), 0);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size > 0) return take(guest, static_cast<std::size_t>(size));
  ::send(guest.socket.get(), &probe_talk::all_arrived, 1, MSG_NOSIGNAL);
  return false;
}

// Byte by byte: what follows the line is no part of it.
bool ProbeServer::greet(Guest& guest) {
  const std::string expected = "ddprun-doctor " + token_ + "\n";
  char byte = 0;
  ssize_t size = 0;
  while ((size = ::recv(guest.socket.get(), &byte, 1, 0)) == 1) {
    guest.greeting += byte;
    if (expected.rfind(guest.greeting, 0) != 0) return false;
    if (guest.greeting != expected) continue;
    guest.known = true;
    return ::send(guest.socket.get(), &probe_talk::accepted, 1, MSG_NOSIGNAL) == 1;
  }
  return size < 0 && (errno == EAGAIN || errno == EINTR);
}

bool ProbeServer::take(Guest& guest, std::size_t size) {
  const std::size_t before = guest.received;
  guest.received += size;
  for (std::size_t i = before; i < std::min(guest.received, probe_talk::echoes); ++i) {
    if (::send(guest.socket.get(), &probe_talk::accepted, 1, MSG_NOSIGNAL) != 1) return false;
  }
  constexpr std::size_t large_end = probe_talk::echoes + probe_talk::large_bytes;
  if (before >= large_end || guest.received < large_end) return true;
  return ::send(guest.socket.get(), &probe_talk::large_arrived, 1, MSG_NOSIGNAL) == 1;
}

}  // namespace ddprun::launcher
