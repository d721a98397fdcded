// Which addresses are this machine's, for whoever asks at each connection.
#pragma once

#include <asio/ip/address.hpp>
#include <chrono>
#include <set>

namespace ddprun::rendezvous {

class OwnAddresses {
 public:
  // Of any interface. Listed anew when the last list is older than a second: a machine may have
  // hundreds of interfaces, and get addresses while a job runs.
  bool contains(const asio::ip::address& address, std::chrono::steady_clock::time_point now);

 private:
  std::set<asio::ip::address>
      addresses_;  // IPv4 ones as such, not mapped; IPv6 ones without scope.
  std::chrono::steady_clock::time_point listed_{};
};

}  // namespace ddprun::rendezvous
