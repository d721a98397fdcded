// The sockets under the store: listening, names of peers, sending without blocking. Plain system
// calls on non-blocking descriptors; nothing here looks up a name.
#pragma once

#include <sys/socket.h>

#include <asio/ip/address.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "rendezvous/store/store_reply.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {

// Listens on `address` (numeric; "" = every interface, IPv6 and IPv4) and `port` (0 = a free one).
// Accepted connections inherit its options: no delay of small replies, and keep-alives that notice
// a vanished peer within two minutes. Throws std::system_error that names address and port.
UniqueFd listen_socket(const std::string& address, std::uint16_t port);
std::uint16_t local_port(int fd);

// "10.0.0.7:40112", "[fe80::1]:40112"; "an unknown peer" if the connection is already gone.
std::string peer_name(int fd);

asio::ip::address ip_address(const sockaddr_storage& address);

// Equal for all connections that one machine can make: IPv6 networks are given out as /64, and a
// machine takes any address of its own.
std::string host_key(const asio::ip::address& address);

enum class SendStatus : std::uint8_t { Done, Blocked, Failed };
// Sends from the front of `reply` what the socket takes now. After Failed the peer is gone.
SendStatus send_some(int fd, ReplyBuffer& reply);

}  // namespace ddprun::rendezvous
