// The least that a c10d store can do, as a bound for every store: it keeps nothing, waits for
// nothing, asks the kernel for nothing but the bytes, and does not sleep while there is load.
//
//   store_floor        prints its port, answers until its input ends
//
// It takes a whole processor: one recv after the other on each connection in turn, and for what
// came one send of an answer of the right length. When nothing has come for a while it sleeps until
// something does, so that others can be measured beside it. What LibTorch's client takes longer per
// request than this needs is the client's and the kernel's share, which no server can make smaller.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/wire/wire.h"

namespace {

using namespace ddprun::rendezvous;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds idle_time{5};
const WireLimits limits;
const std::string value(32, 'v');  // As store_torch's.

struct Connection {
  explicit Connection(int descriptor) : fd(descriptor), parser(limits) {}
  int fd;
  StoreParser parser;
};

void answer(const StoreRequest& request, std::string& out) {
  switch (request.op) {
    case StoreOp::Ping:
      return put_number(out, static_cast<std::uint32_t>(request.number));
    case StoreOp::Add:
      return put_number<std::int64_t>(out, 1);
    case StoreOp::Get:
      return put_string(out, value);
    case StoreOp::Check:
    case StoreOp::Wait:
      return put_number<std::uint8_t>(out, 0);
    case StoreOp::MultiGet:
      for (std::size_t i = 0; i < request.items.size(); ++i) put_string(out, value);
      return;
    default:
      return;  // Has no answer.
  }
}

enum class Found { Nothing, Requests, End };

Found serve(Connection& connection, std::string& out) {
  static char bytes[64u << 10];
  const ssize_t got = ::recv(connection.fd, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN ? Found::Nothing : Found::End;
  if (got == 0) return Found::End;
  std::string_view input(bytes, static_cast<std::size_t>(got));
  out.clear();
  while (connection.parser.next(input) == ParseStatus::Request) {
    answer(connection.parser.request(), out);
  }
  if (!out.empty()) ::send(connection.fd, out.data(), out.size(), MSG_NOSIGNAL);
  return Found::Requests;
}

// Until there is something to do.
void sleep_until_needed(int listener, const std::vector<std::unique_ptr<Connection>>& connections) {
  std::vector<pollfd> all{{STDIN_FILENO, POLLIN, 0}, {listener, POLLIN, 0}};
  for (const auto& connection : connections) all.push_back({connection->fd, POLLIN, 0});
  ::poll(all.data(), all.size(), -1);
}

}  // namespace

int main() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int on = 1;
  ::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener, 1'024) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("store_floor: cannot listen");
    return 1;
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);

  std::vector<std::unique_ptr<Connection>> connections;
  std::string out;
  auto last_request = Clock::now();
  for (std::size_t turn = 0;; ++turn) {
    if (turn % 1'024 == 0) {  // Now and then what is rare.
      if (Clock::now() - last_request > idle_time) sleep_until_needed(listener, connections);
      char byte;
      if (::read(STDIN_FILENO, &byte, 1) == 0) return 0;
      while (true) {
        const int fd = ::accept(listener, nullptr, nullptr);
        if (fd < 0) break;
        connections.push_back(std::make_unique<Connection>(fd));
      }
    }
    bool any = false;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      const Found found = serve(*connections[i], out);
      any = any || found == Found::Requests;
      if (found != Found::End) continue;
      ::close(connections[i]->fd);
      std::swap(connections[i], connections.back());
      connections.pop_back();
    }
    if (any) last_request = Clock::now();
  }
}
