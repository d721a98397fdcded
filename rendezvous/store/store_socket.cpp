// System calls, and not Asio's sockets: the server answers thousands of connections with one recv
// and one send for each request, which needs the descriptors themselves (server.cpp).
#include "rendezvous/store/store_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "rendezvous/host_and_port.h"
#include "rendezvous/store/unmapped_address.h"

namespace ddprun::rendezvous {
namespace {

constexpr int backlog = 65'535;  // The kernel lowers it to net.core.somaxconn.
constexpr int keepalive_idle_s = 60, keepalive_interval_s = 10, keepalive_probes = 6;
constexpr int unacknowledged_ms_max = 120'000;
constexpr int meetings_max = 100;
constexpr int pause_us_max = 200;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family = AF_UNSPEC;
};

Address parse_address(const std::string& text, std::uint16_t port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.size = sizeof *v4;
    address.family = AF_INET;
  } else if (text.empty() || inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;  // "" stays in6addr_any.
    v6->sin6_port = htons(port);
    address.size = sizeof *v6;
    address.family = AF_INET6;
  }
  return address;
}

std::uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
}

void set_option(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);  // An old kernel does without.
}

std::system_error failure(const std::string& address, std::uint16_t port, const char* what) {
  const std::string where =
      (address.empty() ? "every interface" : address) + ", port " + std::to_string(port);
  return {errno, std::generic_category(), "cannot listen on " + where + ": " + what};
}

UniqueFd try_listen(const Address& address, const char*& what) {
  UniqueFd fd(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  what = "socket";
  if (!fd.valid()) return fd;
  // A job that is started again at once would otherwise find the connections of the one before in
  // TIME_WAIT, and its own port taken for a minute.
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, keepalive_idle_s);
  set_option(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, keepalive_interval_s);
  set_option(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, keepalive_probes);
  set_option(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, unacknowledged_ms_max);
  what = "bind";
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    return UniqueFd();
  }
  what = "listen";
  if (::listen(fd.get(), backlog) != 0) return UniqueFd();
  return fd;
}

// For the kernel a socket listens already while it looks whether another one does, so of two that
// come at the same moment both are told that the port is in use: agents of one machine that are
// started together would all wait for the one that has it. Where somebody was there before, bind()
// has said so.
UniqueFd listen_or_lose(const Address& address, const char*& what) {
  std::minstd_rand random(std::random_device{}());
  for (int tries = 1;; ++tries) {
    UniqueFd fd = try_listen(address, what);
    const bool met = !fd.valid() && errno == EADDRINUSE && std::string_view(what) == "listen";
    if (!met || tries == meetings_max) return fd;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % pause_us_max));
  }
}

}  // namespace

UniqueFd listen_socket(const std::string& address, std::uint16_t port) {
  const Address parsed = parse_address(address, port);
  if (parsed.family == AF_UNSPEC) {
    errno = EINVAL;
    throw failure(address, port, "not an IPv4 or IPv6 address");
  }
  const char* what = "";
  UniqueFd fd = listen_or_lose(parsed, what);
  if (!fd.valid() && address.empty()) {  // A machine without IPv6.
    fd = listen_or_lose(parse_address("0.0.0.0", port), what);
  }
  if (!fd.valid()) throw failure(address, port, what);
  return fd;
}

std::uint16_t local_port(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return 0;
  return port_of(storage);
}

std::string peer_name(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "an unknown peer";
  return host_and_port(ip_address(storage).to_string(), port_of(storage));
}

asio::ip::address ip_address(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    return asio::ip::address_v4(ntohl(v4->sin_addr.s_addr));
  }
  asio::ip::address_v6::bytes_type bytes;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  std::memcpy(bytes.data(), &v6->sin6_addr, bytes.size());
  return asio::ip::address_v6(bytes);
}

std::string host_key(const asio::ip::address& address) {
  const asio::ip::address plain = unmapped(address);
  if (plain.is_v4()) return plain.to_string();
  const auto bytes = plain.to_v6().to_bytes();
  return {bytes.begin(), bytes.begin() + 8};
}

SendStatus send_some(int fd, ReplyBuffer& reply) {
  std::array<iovec, 64> pieces;
  while (!reply.empty()) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = reply.pieces(pieces.data(), pieces.size());
    const ssize_t sent =
        message.msg_iovlen == 1
            ? ::send(fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
            : ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      reply.consume(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return SendStatus::Blocked;
    } else if (errno != EINTR) {
      return SendStatus::Failed;
    }
  }
  return SendStatus::Done;
}

}  // namespace ddprun::rendezvous
