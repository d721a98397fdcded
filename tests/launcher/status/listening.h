// A launcher's socket in a test: served by a thread, or by nobody.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <asio/io_context.hpp>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "launcher/status/job_snapshot.h"
#include "launcher/status/status_socket.h"
#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"

namespace ddprun::testing {

class Listening {
 public:
  using Answer = std::function<launcher::JobSnapshot(const rendezvous::Query& query)>;

  Listening(const std::string& folder, Answer answer)
      : socket_(io_, [answer = std::move(answer)](const rendezvous::Query& query,
                                                  const launcher::StatusSocket::Reply& reply) {
          reply(launcher::to_json(answer(query)));
        }) {
    try {
      socket_.serve(launcher::StatusSocket::socket_in({folder}), [] {});
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Listening() {
    io_.stop();
    thread_.join();
  }
  std::string why;

 private:
  asio::io_context io_{1};
  launcher::StatusSocket socket_;
  std::thread thread_;
};

// Nobody serves it; only its kernel's queue is there.
inline rendezvous::UniqueFd unserved_socket(const std::string& path, bool listens) {
  rendezvous::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  if (listens) REQUIRE(::listen(fd.get(), 4) == 0);
  return fd;
}

}  // namespace ddprun::testing
