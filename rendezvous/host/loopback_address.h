// Whether an address leads no further than this machine. By its bytes and not by its text: a name
// may begin with "127.", and lead anywhere.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

// "127.0.0.1" and its net, "::1", "::ffff:127.0.0.1" (how a socket for both families shows the
// first). A name is none, "localhost" neither.
inline bool is_loopback_address(const std::string& address) {
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) return bytes[0] == 127;
  if (inet_pton(AF_INET6, address.c_str(), bytes.data()) != 1) return false;
  const std::array<unsigned char, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  bool is_mapped = true;
  for (std::size_t i = 0; i < mapped.size(); ++i) is_mapped = is_mapped && bytes[i] == mapped[i];
  if (is_mapped) return bytes[12] == 127;
  const std::array<unsigned char, 16> own{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return bytes == own;
}

// Where to listen for those who come to "localhost", a name with these addresses: hosts files may
// have ::1 alone. 127.0.0.1 where it is one of them, or none is a loopback address.
inline std::string address_of_localhost(const std::vector<std::string>& addresses) {
  const std::string usual = "127.0.0.1";
  std::string found;
  for (const std::string& address : addresses) {
    if (address == usual) return usual;
    if (found.empty() && is_loopback_address(address)) found = address;
  }
  return found.empty() ? usual : found;
}

}  // namespace ddprun::rendezvous
