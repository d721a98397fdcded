// An IPv4 address in its IPv6 spelling (::ffff:10.0.0.7), in which a socket of both families shows
// it, is 10.0.0.7 to everybody else.
#pragma once

#include <asio/ip/address.hpp>

namespace ddprun::rendezvous {

// The IPv4 address where `address` is one in that spelling; any other one as it is.
inline asio::ip::address unmapped(const asio::ip::address& address) {
  if (address.is_v4() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

}  // namespace ddprun::rendezvous
