// getifaddrs(3). Not a trial bind(2), which succeeds with every address where ip_nonlocal_bind is
// set: each node of a job would take the endpoint for its own.
#include "rendezvous/host/interface_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <memory>

namespace ddprun::rendezvous {
namespace {

int bits_of_mask(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  int bits = 0;
  if (mask->sa_family == AF_INET) {
    bits = std::popcount(reinterpret_cast<const sockaddr_in*>(mask)->sin_addr.s_addr);
  } else if (mask->sa_family == AF_INET6) {
    for (const unsigned char byte : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr)
      bits += std::popcount(byte);
  }
  return bits;
}

bool is_ipv6(const InterfaceAddress& one) { return one.address.find(':') != std::string::npos; }

// It means something only together with an interface of the host that connects.
bool is_of_one_link(const InterfaceAddress& one) {
  return one.address.find('%') != std::string::npos;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    all.push_back({one->ifa_name, numeric_address(one->ifa_addr), bits_of_mask(one->ifa_netmask),
                   (one->ifa_flags & IFF_LOOPBACK) != 0, (one->ifa_flags & IFF_UP) != 0});
  }
  return all;
}

std::string numeric_address(const sockaddr* address) {
  const int family = address == nullptr ? AF_UNSPEC : address->sa_family;
  if (family != AF_INET && family != AF_INET6) return "";
  const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const bool known =
      ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? text.data() : "";
}

std::vector<InterfaceAddress> usable_addresses(const std::vector<InterfaceAddress>& all) {
  std::vector<InterfaceAddress> usable;
  std::copy_if(all.begin(), all.end(), std::back_inserter(usable), [](const auto& one) {
    return one.up && !one.address.empty() && !is_of_one_link(one);
  });
  std::stable_partition(usable.begin(), usable.end(),
                        [](const auto& one) { return !is_ipv6(one); });
  return usable;
}

}  // namespace ddprun::rendezvous
