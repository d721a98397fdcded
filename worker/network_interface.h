// Which of a host's addresses the other workers connect to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/host/interface_addresses.h"
#include "worker/worker_env.h"

namespace ddprun::worker {

using rendezvous::InterfaceAddress;

// Those of this host that could be meant (rendezvous::usable_addresses).
std::vector<InterfaceAddress> interface_addresses();

// The choice that somebody made, and where.
struct InterfaceChoice {
  std::string
      text;  // A name, an address or a network; several with commas: the first that is here.
  std::string said_in;              // "--interface", "NCCL_SOCKET_IFNAME", for messages.
  bool names_are_prefixes = false;  // As NCCL reads them: eth = eth0, eth1; =eth0; ^docker,lo.
};

// Where the choice is made: `option` if it is not empty, else GLOO_SOCKET_IFNAME, else
// NCCL_SOCKET_IFNAME; nothing when there is none.
std::optional<InterfaceChoice> find_interface_choice(const std::string& option,
                                                     const EnvironmentLookup& lookup);

// Throws WorkerEnvError that lists `all` when none of them is meant, as by an empty text.
InterfaceAddress choose_interface(const InterfaceChoice& choice,
                                  const std::vector<InterfaceAddress>& all);

// The address of this host that `option` or this process's environment chooses; "" without a
// choice.
std::string chosen_address(const std::string& option);

// The address of this host from which packets to `peer` (numeric) go out; "" when there is no way.
std::string address_towards(const std::string& peer);

}  // namespace ddprun::worker
