// An order of sources, from the surest to the name that was typed.
#include "launcher/hosts/endpoint_choice.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "rendezvous/host/loopback_address.h"

namespace ddprun::launcher {
namespace {

struct Connection {
  std::string client, server;
};

Connection connection_of(const HostFacts& host) {
  std::istringstream words(host.ssh_connection);
  std::array<std::string, 4> parts;
  for (std::string& part : parts) words >> part;
  if (parts[3].empty()) return {};
  return {parts[0], parts[2]};
}

// Valid on one link, and with a number of an interface that differs from host to host.
bool is_of_one_link(const std::string& address) {
  return address.find('%') != std::string::npos || address.rfind("fe80:", 0) == 0;
}

EndpointChoice endpoint_here(const std::vector<HostFacts>& hosts,
                             const std::vector<std::string>& own_addresses) {
  std::string seen;
  for (const HostFacts& host : hosts) {
    if (host.is_here) continue;
    const std::string client = connection_of(host).client;
    const bool is_ours = rendezvous::is_loopback_address(client) ||
                         std::count(own_addresses.begin(), own_addresses.end(), client) > 0;
    if (!is_ours || is_of_one_link(client)) {
      return {{},
              {},
              "node 0 is this machine, and " + host.name + " does not say by which address it " +
                  "reaches us (SSH_CONNECTION there: \"" + host.ssh_connection +
                  "\"): give --master-addr"};
    }
    if (seen.empty() || rendezvous::is_loopback_address(seen)) seen = client;
  }
  if (seen.empty()) return {"127.0.0.1", "all nodes are on this machine", {}};
  return {seen, "the other hosts see this machine there", {}};
}

}  // namespace

EndpointChoice choose_endpoint(const std::vector<HostFacts>& hosts,
                               const std::vector<std::string>& own_addresses) {
  const HostFacts& first = hosts.front();
  if (!first.addresses.empty()) {
    return {first.addresses.front(), "the hostfile's address of " + first.name, {}};
  }
  if (first.is_here) return endpoint_here(hosts, own_addresses);
  const std::string server = connection_of(first).server;
  if (server.empty() || is_of_one_link(server)) {
    return {first.name, "the name of the first host", {}};
  }
  // Through a tunnel every host looks like that; then only all of them together are one machine.
  const bool all_loopback = std::all_of(hosts.begin(), hosts.end(), [](const HostFacts& host) {
    return host.is_here || rendezvous::is_loopback_address(connection_of(host).server);
  });
  if (rendezvous::is_loopback_address(server) && !all_loopback) {
    return {first.name, "the name of the first host, which ssh reaches through a tunnel", {}};
  }
  return {server, "ssh reached " + first.name + " there", {}};
}

}  // namespace ddprun::launcher
