// The one listening port of a job. The first byte of a connection tells who calls:
//
//   '{'        an agent          -> handed to `on_control` (rendezvous/coordinator.h)
//   otherwise  a c10d client     -> served here from the Store (docs/store_protocol.md)
//
// Everything runs on the io_context given, in one thread, so nothing here takes a lock. A client
// that waits for a key costs one parked entry in the Store, never a thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace ddprun::rendezvous {

class AccessList;

struct ServerOptions {
  std::string bind_address = "127.0.0.1";  // An address, never a name; "" = all interfaces.
  std::uint16_t port = 0;                  // 0 picks a free port; read it back with port().
  // Who may talk to the store; null: everybody who can reach the port. Must outlive the server.
  const AccessList* store_access = nullptr;
  std::size_t connections_max = 65'536;  // Later connections are closed at once, and logged.
  // Of one address, so that one host cannot take them all.
  std::size_t connections_per_address_max = 32'768;
  std::size_t key_bytes_max = 8'192;
  std::size_t value_bytes_max = 64u << 20;     // c10d's own limit is 8 MiB.
  std::size_t keys_per_request_max = 131'072;  // c10d's own limit.
  std::size_t request_bytes_max = 256u << 20;  // Keys and values of one request together.
  std::size_t output_bytes_max = 256u << 20;   // Unread replies of one client; more closes it.
  std::chrono::milliseconds command_time_max{120'000};  // From a command's first byte to its last.
  std::size_t memory_bytes_max = std::size_t{4} << 30;  // Keys, values and buffers of all clients.
  // Of those: all parked waits, and the keys that only they know.
  std::size_t wait_bytes_max = std::size_t{2} << 30;
};

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

  // Stops listening and closes every store connection. Control connections are not ours any more.
  void close();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
