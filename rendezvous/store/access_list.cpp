// IPv4 is kept in its IPv6 spelling: a socket that serves both shows a caller's IPv4 address as
// ::ffff:10.0.0.7, one that serves IPv4 alone as 10.0.0.7, and the same entry must match both.
#include "rendezvous/store/access_list.h"

#include <algorithm>

#include "rendezvous/parse_number.h"
#include "rendezvous/store/unmapped_address.h"

namespace ddprun::rendezvous {
namespace {

constexpr int address_bits = 128;
constexpr int mapped_prefix_bits = 96;  // ::ffff:0:0/96 holds the IPv4 addresses.

bool same_prefix(const std::array<unsigned char, 16>& one,
                 const std::array<unsigned char, 16>& other, int bits) {
  const auto whole = static_cast<std::size_t>(bits / 8);
  if (!std::equal(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(whole), other.begin())) {
    return false;
  }
  const int rest = bits % 8;
  return rest == 0 || (one[whole] ^ other[whole]) >> (8 - rest) == 0;
}

}  // namespace

AccessList::Bytes AccessList::bytes_of(const asio::ip::address& address) {
  const auto v6 = address.is_v4() ? asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4())
                                  : address.to_v6();
  return v6.to_bytes();
}

bool AccessList::allow(const std::string& address_or_network) {
  const std::size_t slash = address_or_network.find('/');
  asio::error_code error;
  const auto address = asio::ip::make_address(address_or_network.substr(0, slash), error);
  if (error) return false;
  if (slash == std::string::npos) {
    hosts_.insert(bytes_of(address));
    return true;
  }
  const int prefix = parse_number<int>(address_or_network.substr(slash + 1)).value_or(-1);
  const int own_bits = address.is_v4() ? address_bits - mapped_prefix_bits : address_bits;
  if (prefix < 0 || prefix > own_bits) return false;
  networks_.push_back({bytes_of(address), address_bits - own_bits + prefix});
  return true;
}

void AccessList::set_members(const std::vector<std::string>& addresses) {
  members_.clear();
  for (const std::string& text : addresses) {
    asio::error_code error;
    const auto address = asio::ip::make_address(text, error);
    if (!error) members_.insert(bytes_of(address));
  }
}

bool AccessList::permits(const asio::ip::address& address) const {
  if (unmapped(address).is_loopback()) return true;
  const Bytes bytes = bytes_of(address);
  return hosts_.count(bytes) != 0 || members_.count(bytes) != 0 ||
         std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
           return same_prefix(bytes, network.bytes, network.prefix_bits);
         });
}

}  // namespace ddprun::rendezvous
