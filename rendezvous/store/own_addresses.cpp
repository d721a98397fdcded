// getifaddrs(3), remembered for a moment. Not a trial bind(2), which succeeds with every address
// where ip_nonlocal_bind is set.
#include "rendezvous/store/own_addresses.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::seconds listed_for{1};

// Written one way: connections to a socket of both families come from mapped addresses, and a
// link-local one comes with its interface.
asio::ip::address plain(const asio::ip::address& address) {
  if (address.is_v4()) return address;
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6);
  return asio::ip::address_v6(v6.to_bytes());
}

std::set<asio::ip::address> list_addresses() {
  std::set<asio::ip::address> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    if (at->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      found.insert(asio::ip::address_v4(ntohl(v4->sin_addr.s_addr)));
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      asio::ip::address_v6::bytes_type bytes;
      std::copy(std::begin(v6->sin6_addr.s6_addr), std::end(v6->sin6_addr.s6_addr), bytes.begin());
      found.insert(asio::ip::address_v6(bytes));
    }
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace

bool OwnAddresses::contains(const asio::ip::address& address,
                            std::chrono::steady_clock::time_point now) {
  if (addresses_.empty() || now - listed_ >= listed_for) {
    addresses_ = list_addresses();
    listed_ = now;
  }
  return addresses_.contains(plain(address));
}

}  // namespace ddprun::rendezvous
