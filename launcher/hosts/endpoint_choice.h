// Under which address the nodes of a job over ssh meet at the first host, when nobody has said.
// A core: no sockets, threads or clock.
//
// A name of -H may be one of ~/.ssh/config alone, which no other node can resolve. So what counts
// is what ssh has proved: the address at which a connection to that host arrived, or, when node 0
// is here, the address from which the other hosts see us come (both in SSH_CONNECTION).
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

struct HostFacts {
  bool is_here = false;                // Started without ssh.
  std::string name;                    // As the list of hosts has it.
  std::vector<std::string> addresses;  // From the list; the first one is for us.
  std::string ssh_connection;          // "CLIENT PORT SERVER PORT", or "".
};

struct EndpointChoice {
  std::string host;
  std::string reason;
  std::string problem;  // Why there is none, and what to do; "" = there is one.
};

// `own_addresses`: of this machine, numeric.
EndpointChoice choose_endpoint(const std::vector<HostFacts>& hosts,
                               const std::vector<std::string>& own_addresses);

}  // namespace ddprun::launcher
