// Listening, calling and answering.
#include "worker/peers/mesh.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>

#include "rendezvous/random_id.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t hello_magic = 0x48504444;  // "DDPH"
constexpr std::size_t callers_max = 1024;          // Connections that have not said hello yet.
constexpr int accept_pause_ms = 50;                // When descriptors have run out.

int milliseconds_left(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, std::min<std::int64_t>(left, 60'000)));
}

// Why a connection that waits cannot be accepted, and may be later; "" if errno is of another kind.
std::string shortage(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return "";
  return std::string("connections cannot be accepted: ") + std::strerror(error) +
         (error == EMFILE   ? " (raise the limit of open files, ulimit -n)"
          : error == ENFILE ? " (the limit of this host, fs.file-max)"
                            : "");
}

struct AddressInfoDeleter {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};

// Numeric addresses only: names were resolved when the store was found.
std::unique_ptr<addrinfo, AddressInfoDeleter> resolve(const std::string& ip, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(ip.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw CommunicatorError("\"" + ip + "\" is not a numeric address: " + ::gai_strerror(error));
  }
  return std::unique_ptr<addrinfo, AddressInfoDeleter>(found);
}

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));  // Best effort: these only tune.
}

void tune(int fd, bool watch) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (!watch) return;
  // The peers' kernels answer these probes, whatever their processes do: a worker that is stopped,
  // in a debugger or in a long step is not silent. A probe each second, so that all ranks know at
  // any time whom they hear (PeerWatch::heard). Where data is under way there are no probes, and
  // the user timeout alone decides, as it does over the number of probes where it is set (tcp(7)).
  const int timeout_s = static_cast<int>(peer_silence_max.count());
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, timeout_s);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_s * 1000);
}

}  // namespace

// The first bytes of every connection.
struct Mesh::Hello {
  std::uint32_t magic = hello_magic;
  std::uint32_t epoch = 0;
  std::uint32_t rank = 0;
  Channel channel = Channel::Data;
  char secret[32] = {};
};

struct Mesh::Caller {
  UniqueFd socket;
  Hello hello;
  std::size_t received = 0;
};

std::string to_text(const PeerAddress& a) {
  std::ostringstream out;
  out << "1 " << a.host << ' ' << a.ip << ' ' << a.port << ' ' << a.secret << ' ' << a.segment.pid
      << ' ' << a.segment.fd << ' ' << a.segment.bytes << ' '
      << (a.segment.token.empty() ? "-" : a.segment.token);
  return out.str();
}

PeerAddress parse_peer_address(const std::string& text) {
  std::istringstream in(text);
  PeerAddress a;
  int version = 0;
  in >> version >> a.host >> a.ip >> a.port >> a.secret >> a.segment.pid >> a.segment.fd >>
      a.segment.bytes >> a.segment.token;
  if (!in || version != 1) {
    throw CommunicatorError("a rank published the address \"" + text.substr(0, 200) +
                            "\", which this version of ddprun does not understand");
  }
  return a;
}

Mesh::Mesh(int rank, std::uint32_t epoch, const std::string& ip)
    : rank_(rank), epoch_(epoch), secret_(rendezvous::random_id()) {
  const auto address = resolve(ip, 0);
  listener_ = UniqueFd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (!listener_ || ::bind(listener_.get(), address->ai_addr, address->ai_addrlen) != 0 ||
      ::listen(listener_.get(), 256) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    throw CommunicatorError("rank " + std::to_string(rank) + " cannot listen on " + ip + ": " +
                            std::strerror(errno));
  }
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

UniqueFd Mesh::call(int peer, const PeerAddress& to, Channel channel,
                    Clock::time_point deadline) const {
  const auto address = resolve(to.ip, to.port);
  UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = fd ? 0 : errno;
  if (fd && ::connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      pollfd polled{fd.get(), POLLOUT, 0};
      error = ETIMEDOUT;
      while (Clock::now() < deadline) {
        if (::poll(&polled, 1, milliseconds_left(deadline)) <= 0) continue;
        socklen_t size = sizeof(error);
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        break;
      }
    }
  }
  Hello hello;
  hello.epoch = epoch_;
  hello.rank = static_cast<std::uint32_t>(rank_);
  hello.channel = channel;
  std::memcpy(hello.secret, to.secret.data(), std::min(to.secret.size(), sizeof(hello.secret)));
  // A fresh connection's buffer takes these few bytes at once.
  if (error == 0 && ::send(fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    error = errno;
  }
  if (error != 0) {
    throw CommunicatorError("rank " + std::to_string(rank_) + " cannot connect to rank " +
                            std::to_string(peer) + " at " + to.ip + ":" + std::to_string(to.port) +
                            ": " + std::strerror(error));
  }
  return fd;
}

bool Mesh::take(Caller& caller, std::vector<PeerSockets>& sockets) const {
  const Hello& hello = caller.hello;
  const auto rank = static_cast<std::size_t>(hello.rank);
  if (hello.magic != hello_magic || hello.epoch != epoch_ || rank >= sockets.size() ||
      std::memcmp(hello.secret, secret_.data(), sizeof(hello.secret)) != 0) {
    return false;
  }
  UniqueFd& place = hello.channel == Channel::Data ? sockets[rank].data : sockets[rank].watch;
  if (place || static_cast<int>(rank) <= rank_) return false;
  place = std::move(caller.socket);
  return true;
}

void Mesh::accept_all(std::vector<PeerSockets>& sockets, Clock::time_point deadline) {
  const auto missing = [&] {
    std::string ranks;
    for (std::size_t rank = static_cast<std::size_t>(rank_) + 1; rank < sockets.size(); ++rank) {
      if (sockets[rank].data && sockets[rank].watch) continue;
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return ranks;
  };
  std::vector<Caller> callers;
  std::string short_of;  // Not empty: why the last connection could not be accepted.
  while (!missing().empty()) {
    if (Clock::now() >= deadline) {
      throw CommunicatorError("rank " + std::to_string(rank_) + " was not called by rank(s) " +
                              missing() + " in time" + (short_of.empty() ? "" : ": " + short_of));
    }
    // A listener that cannot accept stays readable: it is left out, and tried again after a pause.
    const bool pausing = !short_of.empty();
    const int left_ms = milliseconds_left(deadline);
    std::vector<pollfd> polled{{pausing ? -1 : listener_.get(), POLLIN, 0}};
    for (const Caller& caller : callers) polled.push_back({caller.socket.get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), pausing ? std::min(left_ms, accept_pause_ms) : left_ms);
    for (std::size_t i = callers.size(); i-- > 0;) {
      if (polled[i + 1].revents == 0) continue;
      Caller& caller = callers[i];
      const ssize_t got =
          ::recv(caller.socket.get(), reinterpret_cast<char*>(&caller.hello) + caller.received,
                 sizeof(Hello) - caller.received, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got > 0) caller.received += static_cast<std::size_t>(got);
      if (got > 0 && caller.received < sizeof(Hello)) continue;
      if (got > 0) take(caller, sockets);  // A stranger's connection is closed by the next line.
      callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (!pausing && polled[0].revents == 0) continue;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    short_of = socket ? "" : shortage(errno);
    if (socket && callers.size() < callers_max) callers.push_back({std::move(socket), {}, 0});
  }
}

std::vector<PeerSockets> Mesh::connect(const std::vector<PeerAddress>& peers,
                                       Clock::time_point deadline) {
  std::vector<PeerSockets> sockets(peers.size());
  for (int peer = 0; peer < rank_; ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    sockets[index].data = call(peer, peers[index], Channel::Data, deadline);
    sockets[index].watch = call(peer, peers[index], Channel::Watch, deadline);
  }
  accept_all(sockets, deadline);
  for (PeerSockets& pair : sockets) {
    if (!pair.data) continue;
    tune(pair.data.get(), false);
    tune(pair.watch.get(), true);
  }
  listener_ = UniqueFd();
  return sockets;
}

}  // namespace ddprun::worker
