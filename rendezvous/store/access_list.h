// Which hosts may talk to the store: those that have workers of the job now, this machine itself,
// and whom the user named.
//
// Whoever can write to the store can stop the job or lead its workers astray. An address cannot
// tell a worker from another process of the same host; of this machine's own processes the kernel
// says whose they are (socket_owner.h, docs/security.md).
#pragma once

#include <array>
#include <asio/ip/address.hpp>
#include <set>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

class AccessList {
 public:
  // "10.0.0.7", "10.0.0.0/8", "fd00::/8". False: not understood, nothing is allowed by it.
  bool allow(const std::string& address_or_network);

  // The hosts that have workers now, in place of those before. What is no address is left out.
  void set_members(const std::vector<std::string>& addresses);

  // Loopback always is. An IPv4 address is the same in its IPv6 spelling (::ffff:10.0.0.7).
  bool permits(const asio::ip::address& address) const;

 private:
  using Bytes = std::array<unsigned char, 16>;  // IPv4 in its IPv6 spelling.
  struct Network {
    Bytes bytes;
    int prefix_bits;  // Of 128.
  };
  static Bytes bytes_of(const asio::ip::address& address);

  std::set<Bytes> hosts_;
  std::set<Bytes> members_;
  std::vector<Network> networks_;
};

}  // namespace ddprun::rendezvous
