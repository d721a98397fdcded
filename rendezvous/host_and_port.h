// Where something listens, as messages say it: "10.0.0.7:29500", "[fe80::1]:29500". Without the
// brackets nobody could tell where an IPv6 address ends and the port begins.
#pragma once

#include <string>

namespace ddprun::rendezvous {

// `host`: a name or an address, without brackets. `port`: also in words ("a free port").
inline std::string host_and_port(const std::string& host, const std::string& port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + port;
}

inline std::string host_and_port(const std::string& host, int port) {
  return host_and_port(host, std::to_string(port));
}

}  // namespace ddprun::rendezvous
