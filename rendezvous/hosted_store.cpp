// An event loop, a server and a thread: all that rank 0 needs of a launcher.
#include "rendezvous/hosted_store.h"

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "rendezvous/server.h"

namespace ddprun::rendezvous {

struct HostedStore::Impl {
  Impl(const std::string& bind_address, std::uint16_t port)
      // There is no coordinator: an agent that calls finds its connection closed.
      : server(std::in_place, io,
               ServerOptions{.bind_address = bind_address, .port = port, .own_users_only = true},
               [](asio::ip::tcp::socket, const std::string&) {}),
        thread([this] { io.run(); }) {}
  ~Impl() {
    // In the thread of the loop: nothing in a server takes a lock.
    asio::post(io, [this] { server.reset(); });
    thread.join();
  }

  asio::io_context io{1};
  std::optional<Server> server;
  std::thread thread;
};

HostedStore::HostedStore(const std::string& bind_address, std::uint16_t port)
    : impl_(std::make_unique<Impl>(bind_address, port)) {}

HostedStore::~HostedStore() = default;

std::uint16_t HostedStore::port() const { return impl_->server->port(); }

}  // namespace ddprun::rendezvous
