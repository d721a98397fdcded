// Answers every connection with the same bytes, or with silence: a server that is not what it
// should be.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <asio/ip/tcp.hpp>
#include <asio/read_until.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ddprun::testing {

class CannedServer {
 public:
  // "": connections are taken, and nothing is said.
  explicit CannedServer(std::string answer)
      : answer_(std::move(answer)),
        end_(::eventfd(0, EFD_CLOEXEC)),
        acceptor_(io_, {asio::ip::address_v4::loopback(), 0}),
        thread_([this] { serve(); }) {}
  ~CannedServer() {
    const std::uint64_t one = 1;
    if (::write(end_, &one, sizeof one) < 0) std::abort();
    thread_.join();
    ::close(end_);
  }
  CannedServer(const CannedServer&) = delete;

  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  void serve() {
    std::vector<asio::ip::tcp::socket> silent;
    for (;;) {
      pollfd ready[] = {{end_, POLLIN, 0}, {acceptor_.native_handle(), POLLIN, 0}};
      ::poll(ready, 2, -1);
      if (ready[0].revents != 0) return;
      asio::ip::tcp::socket socket = acceptor_.accept();
      if (answer_.empty()) {
        silent.push_back(std::move(socket));
        continue;
      }
      asio::error_code ignored;
      asio::streambuf request;
      asio::read_until(socket, request, "}", ignored);  // The body is one object.
      asio::write(socket, asio::buffer(answer_), ignored);
    }
  }

  std::string answer_;
  int end_;
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

}  // namespace ddprun::testing
