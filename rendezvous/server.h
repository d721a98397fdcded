// The one listening port of a job. The first byte of a connection tells who calls:
//
//   '{', TLS   an agent          -> handed to `on_control` (rendezvous/coordinator.h)
//   otherwise  a c10d client     -> served here from the Store (docs/store_protocol.md)
//
// Everything runs on the io_context given, in one thread, so nothing here takes a lock. A client
// that waits for a key costs one parked entry in the Store, never a thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/store/server_options.h"

namespace ddprun::rendezvous {

class Server {
 public:
  // A control connection and the bytes already read from it.
  using OnControl = std::function<void(asio::ip::tcp::socket socket, std::string received)>;

  // Listens at once, so clients may connect before io.run(). Throws std::system_error if the
  // address cannot be bound. `io` must outlive the server.
  Server(asio::io_context& io, ServerOptions options, OnControl on_control);
  ~Server();  // As close().

  std::uint16_t port() const;

  // A new attempt begins: drops all keys and closes every store connection, bytes in flight
  // included, so that no client of the attempt before can read or write. A StoreClient that makes a
  // new connection and belongs to an attempt of another name is turned away ("" fits all).
  void start_attempt(const std::string& name = {});

  // The list of ServerOptions::store_access has changed: closes the connections of those who are
  // not on it any more.
  void recheck_access();

  // The value of a key as a number; nothing: there is no such key, or it holds something else.
  // `key` as clients send it, with "/" before it.
  std::optional<std::int64_t> number(std::string_view key) const;

  // Stops listening and closes every store connection. Control connections are not ours any more.
  void close();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
