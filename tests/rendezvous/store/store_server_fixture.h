// For tests that talk to a store over sockets: a server in a thread, a client that sends any bytes,
// and the bytes of the common commands of torch 2.2 and later.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/server.h"
#include "rendezvous/wire/wire.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

namespace ddprun::rendezvous::testing {

inline std::string u64(std::uint64_t number) {
  std::string out;
  put_number(out, number);
  return out;
}
inline std::string text(std::string_view bytes) {
  std::string out;
  put_string(out, bytes);
  return out;
}
inline std::string op(StoreOp code) { return std::string(1, static_cast<char>(code)); }
inline const std::string validate{"\x00\xCE\xF7\x85\x3C", 5};
inline const std::string stop("\0", 1), canceled("\1", 1);

inline std::string set(std::string_view key, std::string_view value) {
  return op(StoreOp::Set) + text(key) + text(value);
}
inline std::string get(std::string_view key) { return op(StoreOp::Get) + text(key); }
inline std::string wait(std::string_view key) { return op(StoreOp::Wait) + u64(1) + text(key); }

// A server in a thread of its own, which logs nothing.
struct ServerFixture {
  explicit ServerFixture(ServerOptions options = {}) {
    spdlog::set_level(spdlog::level::off);
    server = std::make_unique<Server>(io, options,
                                      [this](asio::ip::tcp::socket socket, std::string received) {
                                        controls.emplace_back(std::move(socket));
                                        control.set_value(std::move(received));
                                      });
    thread = std::thread([this] { io.run(); });
  }
  ~ServerFixture() {
    run([this] { server.reset(); });
    thread.join();
    spdlog::set_level(spdlog::level::info);
  }
  ServerFixture(const ServerFixture&) = delete;
  ServerFixture& operator=(const ServerFixture&) = delete;
  // In the server's thread.
  template <class Function>
  void run(Function function) {
    std::promise<void> done;
    asio::post(io, [&] {
      function();
      done.set_value();
    });
    done.get_future().get();
  }
  std::uint16_t port() const { return server->port(); }

  asio::io_context io;
  std::vector<asio::ip::tcp::socket> controls;
  std::promise<std::string> control;  // What the first control connection brought.
  std::unique_ptr<Server> server;
  std::thread thread;
};

// A client that writes and reads bytes; every read has a limit of ten seconds.
struct RawClient {
  // `from`: an address of this machine; null: the usual. `to`: where the server is.
  explicit RawClient(std::uint16_t port, const std::string& first = validate,
                     const char* from = nullptr, const char* to = "127.0.0.1") {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    if (from != nullptr) {
      REQUIRE(::inet_pton(AF_INET, from, &address.sin_addr) == 1);
      REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    }
    REQUIRE(::inet_pton(AF_INET, to, &address.sin_addr) == 1);
    address.sin_port = htons(port);
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    // As torch's clients do; otherwise the kernel would keep what follows a command that has no
    // answer.
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!first.empty()) send(first);
  }
  explicit RawClient(const ServerFixture& fixture, const std::string& first = validate)
      : RawClient(fixture.port(), first) {}
  RawClient(RawClient&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  RawClient& operator=(RawClient&& other) noexcept {
    std::swap(fd, other.fd);
    return *this;
  }
  RawClient(const RawClient&) = delete;
  ~RawClient() { close(); }
  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  // Closes without a word: the server gets an RST.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void send(const std::string& bytes) const {
    std::size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t sent = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;  // The server closed it, which read() will show.
      at += static_cast<std::size_t>(sent);
    }
  }
  static int answer_limit_ms() {
    return static_cast<int>(ddprun::testing::patience(std::chrono::seconds(10)).count());
  }
  // `size` bytes, or fewer if the server closes the connection or says nothing more.
  std::string read(std::size_t size, int limit_ms = answer_limit_ms()) const {
    std::string bytes;
    while (bytes.size() < size) {
      if (!readable(limit_ms)) break;
      char buffer[65536];
      const ssize_t got = ::recv(fd, buffer, std::min(sizeof buffer, size - bytes.size()), 0);
      if (got <= 0) break;
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
    return bytes;
  }
  bool readable(int limit_ms) const {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, limit_ms) > 0;
  }
  bool closed() const {
    char byte;
    return readable(answer_limit_ms()) && ::recv(fd, &byte, 1, 0) <= 0;
  }
  std::string ask(const std::string& request, std::size_t size) const {
    send(request);
    return read(size);
  }
  // Returns when the server has carried out everything sent before.
  void sync() const { REQUIRE(ask(op(StoreOp::Ping) + "sync", 4) == "sync"); }

  int fd = -1;
};

}  // namespace ddprun::rendezvous::testing
