// Who listens at the job's endpoint, and on which address.
//
//   one node    this one, on loopback only
//   static      the node with rank 0
//   c10d        --rdzv-conf is_host; else any node to which the endpoint's host is local and whose
//               attempt to listen succeeds first
//
// A core: what is local and what names mean comes in as arguments.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launcher/options/launch_options.h"
#include "rendezvous/control/council.h"

namespace ddprun::launcher {

struct EndpointPlan {
  enum class Role {
    Host,        // Listen; a port in use is an error.
    HostIfFree,  // Listen; if the port is in use, another agent of this machine has it: join.
    Join,        // Another node listens.
  };
  Role role = Role::Host;
  std::string bind_address;  // Numeric; "" = all interfaces. Meaningless for Join.
  std::uint16_t port = 0;    // 0 = any free one.
  std::string master_addr;   // What workers are told, ...
  enum class AddressFrom {   // ... and why that.
    Endpoint,                // As it was given, or loopback for the only node.
    LocalAddr,               // --local-addr.
    Machine,                 // An address of this machine, where the endpoint names none, or
                             // its name leads to loopback here.
  };
  AddressFrom address_from = AddressFrom::Endpoint;
  // Of this machine, any of which master_addr may be or lead to: the other nodes may not reach all.
  std::vector<std::string> candidates;
  std::string warning;  // For the user; "" = none.
};

// What the plan needs to know about this machine.
struct EndpointFacts {
  std::vector<std::string> addresses;  // Of options.endpoint_host, numeric.
  std::string own_host_name;
  std::vector<std::string> own_addresses;                    // Of all interfaces, numeric.
  std::function<bool(const std::string& address)> is_local;  // An address of this machine?
};

EndpointPlan plan_endpoint(const LaunchOptions& options, const EndpointFacts& facts);

// Where a node's workers find the store of a round. `came_by_endpoint`: it reached the round's
// coordinator at options.endpoint_host. It names the store's host as it has itself found it, which
// the host's own name for itself, `told`, may be no way to: 0.0.0.0, or a name of its hosts file.
std::string store_host(const LaunchOptions& options, bool came_by_endpoint, const std::string& told,
                       int told_port);

// The same on the coordinator's own node. `came_to`: the addresses of this machine to which the
// other nodes have come. Workers take the way to their store for their own place, so that one of
// several addresses must be one that those reach.
std::string leaders_store_host(const EndpointPlan& plan, const std::string& told,
                               const std::vector<std::string>& came_to);

// 0.0.0.0 or ::, where a host listens, and which is no way to it.
bool is_unspecified(const std::string& address);

// Whether a node on another host could come to this job: several nodes, and an endpoint that is no
// loopback address. Only the options count, so that all nodes answer alike.
bool another_host_may_join(const LaunchOptions& options);

// Whether the nodes must prove the job's secret.
bool needs_secret(const LaunchOptions& options);

// Whether an agent may go on in the place of the job's coordinator if that is lost. Two nodes have
// no majority, and need an arbiter.
bool may_be_taken_over(const LaunchOptions& options);

// What may say who goes on where no majority can, if anything.
rendezvous::Arbitration arbitration_of(const LaunchOptions& options);
// How long another node's claim lasts that is not heard of any more ...
std::chrono::milliseconds claim_lapse(const LaunchOptions& options);
// ... and how long a word of the arbiter is waited for.
std::chrono::milliseconds word_limit(const LaunchOptions& options);

// Where a node that is not the endpoint's host listens for the case that it takes over, on any free
// port.
EndpointPlan plan_standby(const LaunchOptions& options);

// Whether the plan depends on what options.endpoint_host resolves to.
bool needs_addresses(const LaunchOptions& options);

// Whether it does not resolve yet and must, before this node can say who hosts, and where the
// others and all workers find that. The only node of a job needs no name.
bool waits_for_name(const LaunchOptions& options, const EndpointFacts& facts);

}  // namespace ddprun::launcher
