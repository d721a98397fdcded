// The addresses of this host's network interfaces, for whoever must know which are its own and by
// which others reach it.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace ddprun::rendezvous {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // "10.0.0.7", "fe80::1%eth0"; "" = one of no IP: the interface itself.
  int prefix_bits = 0;    // 24 in "10.0.0.7/24".
  bool loopback = false;
  bool up = true;
};

// All of them in the kernel's order, aliases and a container's too; none where it tells of none.
std::vector<InterfaceAddress> interface_addresses();

// Of `all`, what other hosts could connect to: addresses of interfaces that are up, IPv4 first, and
// none that is valid on one link only. Loopback ones are among them.
std::vector<InterfaceAddress> usable_addresses(const std::vector<InterfaceAddress>& all);

// "10.0.0.7", "fe80::1%eth0"; "" for what is no IP address.
std::string numeric_address(const sockaddr* address);

}  // namespace ddprun::rendezvous
