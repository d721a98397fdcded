// Where a store listens, whom it serves, and what it lets clients take: every limit there is, so
// that no client's behaviour can cost the host more than these.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "rendezvous/store/strangers.h"

namespace ddprun::rendezvous {

class AccessList;

struct ServerOptions {
  std::string bind_address = "127.0.0.1";  // An address, never a name; "" = all interfaces.
  std::uint16_t port = 0;                  // 0 picks a free port; read it back with port().
  // Who may talk to the store; null: everybody who can reach the port. Must outlive the server.
  const AccessList* store_access = nullptr;
  // --store-auth: whether `proof` proves the statement of store_attempt.h; empty: none is asked
  // for.
  std::function<bool(std::string_view statement, std::string_view proof)> proves = {};
  // Connections from this machine must be of our own user's processes, or root's, where the kernel
  // tells (socket_owner.h).
  bool own_users_only = false;
  // Of those who may use the store; later ones are closed at once, and logged.
  std::size_t connections_max = 65'536;
  // Of one address, so that one host cannot take them all.
  std::size_t connections_per_address_max = 32'768;
  // With --store-auth a quarter of both is for clients that have not proved the key yet: the oldest
  // gives way to the next, and each has strangers.time_max. Not the limits of strangers: all
  // workers of a large job come at once, and none of them is to be sent away.
  static constexpr std::size_t unproved_part = 4;
  // Of such a client: one request, and its unread replies.
  std::size_t unproved_bytes_max = 1'024;
  // Connections of all others that have not sent a byte: agents, before they speak, and whoever
  // else reaches the port.
  Strangers::Limits strangers = {};
  std::size_t key_bytes_max = 8'192;
  std::size_t value_bytes_max = 64u << 20;     // c10d's own limit is 8 MiB.
  std::size_t keys_per_request_max = 131'072;  // c10d's own limit.
  std::size_t request_bytes_max = 256u << 20;  // Keys and values of one request together.
  std::size_t output_bytes_max = 256u << 20;   // Unread replies of one client; more closes it.
  std::chrono::milliseconds command_time_max{120'000};  // From a command's first byte to its last.
  std::size_t memory_bytes_max = std::size_t{4} << 30;  // Keys, values and buffers of all clients.
  // Of those: all parked waits, and the keys that only they know.
  std::size_t wait_bytes_max = std::size_t{2} << 30;

  std::size_t unproved_max() const {
    return proves ? std::max<std::size_t>(connections_max / unproved_part, 1) : 0;
  }
  std::size_t unproved_per_address_max() const {
    return proves ? std::max<std::size_t>(connections_per_address_max / unproved_part, 1) : 0;
  }
};

}  // namespace ddprun::rendezvous
