// The list of addresses, remembered for a moment.
#include "rendezvous/store/own_addresses.h"

#include "rendezvous/host/interface_addresses.h"
#include "rendezvous/store/unmapped_address.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::seconds listed_for{1};

// Written one way: a link-local one comes with its interface.
asio::ip::address plain(const asio::ip::address& address) {
  const asio::ip::address one = unmapped(address);
  return one.is_v4() ? one : asio::ip::address_v6(one.to_v6().to_bytes());
}

std::set<asio::ip::address> list_addresses() {
  std::set<asio::ip::address> found;
  for (const InterfaceAddress& one : interface_addresses()) {
    asio::error_code none;
    const auto address = asio::ip::make_address(one.address, none);
    if (!none) found.insert(plain(address));
  }
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
