// Who hosts, as one function of the options and of what is known of this machine: two agents that
// both thought so, or neither, would each wait for the other.
#include "launcher/membership/endpoint.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

#include "launcher/options/endpoint_options.h"
#include "rendezvous/host/loopback_address.h"

namespace ddprun::launcher {
namespace {

constexpr const char* loopback = "127.0.0.1";

// The bytes of a numeric address, 4 or 16 of them; none if it is a name.
std::vector<unsigned char> address_bytes(const std::string& address) {
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) {
    return {bytes.begin(), bytes.begin() + 4};
  }
  const std::string without_scope = address.substr(0, address.find('%'));  // fe80::1%eth0
  if (inet_pton(AF_INET6, without_scope.c_str(), bytes.data()) == 1) {
    return {bytes.begin(), bytes.end()};
  }
  return {};
}

bool is_all(const std::vector<unsigned char>& bytes) {
  return !bytes.empty() &&
         std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0; });
}

// The one address to listen on so that all nodes can connect, or "" for all interfaces.
std::string listening_address(const std::string& host, const EndpointFacts& facts) {
  if (host == "localhost") return rendezvous::address_of_localhost(facts.addresses);
  // No other node comes to a loopback address, so that no secret is asked for: then nobody may.
  if (rendezvous::is_loopback_address(host)) return host;
  if (is_unspecified(host)) return "";
  if (!address_bytes(host).empty()) return facts.is_local(host) ? host : "";
  // A name: hosts files often map a machine's own name to loopback, where no other node gets in.
  std::vector<std::string> usable;
  for (const std::string& address : facts.addresses) {
    if (!rendezvous::is_loopback_address(address) && facts.is_local(address))
      usable.push_back(address);
  }
  return usable.size() == 1 ? usable.front() : "";
}

bool is_for_others(const std::string& address) {
  return !rendezvous::is_loopback_address(address) && address.find('%') == address.npos &&
         !is_unspecified(address);  // With a zone it is one of a single link.
}

// What the endpoint's name means on this machine.
std::vector<std::string> named_addresses(const EndpointFacts& facts) {
  std::vector<std::string> named;
  for (const std::string& address : facts.addresses) {
    if (is_for_others(address) && facts.is_local(address)) named.push_back(address);
  }
  return named;
}

// Of a machine that listens everywhere: those that other hosts could reach, since workers take the
// way to their store for their own place. What the endpoint's name means goes first, then IPv4.
std::vector<std::string> usual_addresses(const EndpointFacts& facts) {
  std::vector<std::string> usual = named_addresses(facts);
  if (!usual.empty()) return usual;
  std::copy_if(facts.own_addresses.begin(), facts.own_addresses.end(), std::back_inserter(usual),
               is_for_others);
  std::stable_partition(usual.begin(), usual.end(), [](const std::string& address) {
    return address_bytes(address).size() == 4;
  });
  return usual;
}

// Debian's hosts file has 127.0.1.1 for a machine's own name.
bool may_lead_to_loopback(const EndpointFacts& facts) {
  return std::any_of(facts.addresses.begin(), facts.addresses.end(),
                     rendezvous::is_loopback_address);
}

// Where it listens everywhere, and so there.
void choose_address(const LaunchOptions& options, const EndpointFacts& facts, EndpointPlan& plan) {
  const std::string& given = options.local_addr;
  if (!given.empty()) {
    plan.master_addr = given;
    plan.address_from = EndpointPlan::AddressFrom::LocalAddr;
    return;
  }
  const bool leads_there = !is_unspecified(options.endpoint_host) && !may_lead_to_loopback(facts);
  plan.candidates = leads_there ? named_addresses(facts) : usual_addresses(facts);
  if (leads_there || plan.candidates.empty()) return;
  plan.master_addr = plan.candidates.front();
  plan.address_from = EndpointPlan::AddressFrom::Machine;
}

bool looks_local(const std::string& host, const EndpointFacts& facts) {
  if (host == "localhost" || host == facts.own_host_name) return true;
  return std::any_of(facts.addresses.begin(), facts.addresses.end(), facts.is_local);
}

}  // namespace

bool is_unspecified(const std::string& address) { return is_all(address_bytes(address)); }

// Another port than the endpoint's is not where this node has come in: a tunnel's end, or a port
// that is mapped.
std::string store_host(const LaunchOptions& options, bool came_by_endpoint, const std::string& told,
                       int told_port) {
  const bool is_there = came_by_endpoint && told_port == options.endpoint_port &&
                        another_host_may_join(options) && !meets_in_etcd(options);
  return is_there ? options.endpoint_host : told;
}

std::string leaders_store_host(const EndpointPlan& plan, const std::string& told,
                               const std::vector<std::string>& came_to) {
  const auto& own = plan.candidates;
  if (own.size() < 2 || came_to.empty()) return told;
  const std::string& address = came_to.front();  // None of its own where a tunnel ends here.
  const bool is_one = std::find(own.begin(), own.end(), address) != own.end();
  // Of several none is known to be reached by all.
  const bool all_came = std::count(came_to.begin(), came_to.end(), address) ==
                        static_cast<std::ptrdiff_t>(came_to.size());
  return is_one && all_came ? address : told;
}

bool another_host_may_join(const LaunchOptions& options) {
  const std::string& host = options.endpoint_host;
  return options.nnodes_max > 1 && host != "localhost" && !rendezvous::is_loopback_address(host);
}

bool needs_secret(const LaunchOptions& options) {
  // Their workers need a key, to prove it or to derive others from it.
  if (options.store_auth || options.encrypt_gradients) return options.auth != Auth::None;
  if (options.auth == Auth::Secret) return options.nnodes_max > 1;  // Tunnels end at a loopback.
  return options.auth == Auth::Auto && another_host_may_join(options);
}

bool may_be_taken_over(const LaunchOptions& options) {
  const int enough = arbitration_of(options) == rendezvous::Arbitration::None ? 3 : 2;
  // Workers of a static job may take MASTER_ADDR for rank 0's host, which is so until a takeover:
  // there it must be asked for.
  const bool elastic = options.backend == RendezvousBackend::C10d;
  return options.takeover.value_or(elastic) && options.nnodes_max >= enough;
}

rendezvous::Arbitration arbitration_of(const LaunchOptions& options) {
  if (options.etcd.any()) return rendezvous::Arbitration::Anyone;
  return options.tie_breaker.empty() ? rendezvous::Arbitration::None
                                     : rendezvous::Arbitration::Halves;
}

std::chrono::milliseconds claim_lapse(const LaunchOptions& options) {
  return 2 * options.heartbeat_timeout;
}

// Another node may have claimed just before, and died of what this one noticed.
std::chrono::milliseconds word_limit(const LaunchOptions& options) {
  return 2 * claim_lapse(options) + std::chrono::seconds(10);
}

EndpointPlan plan_standby(const LaunchOptions& options) {
  EndpointPlan plan;
  const std::string& host = options.endpoint_host;
  if (host == "localhost" || rendezvous::is_loopback_address(host)) {
    plan.bind_address = host == "localhost" ? loopback : host;
  } else if (!address_bytes(options.local_addr).empty()) {
    plan.bind_address = options.local_addr;
  }
  plan.port = 0;
  return plan;
}

bool needs_addresses(const LaunchOptions& options) {
  if (options.standalone || meets_in_etcd(options)) return false;
  if (options.nnodes_max == 1) return options.endpoint_host != "localhost";
  return options.backend == RendezvousBackend::C10d || options.node_rank == 0;
}

bool waits_for_name(const LaunchOptions& options, const EndpointFacts& facts) {
  if (!needs_addresses(options) || options.nnodes_max == 1 || !facts.addresses.empty()) {
    return false;
  }
  if (options.endpoint_host == "localhost") return false;  // Known where no name is.
  const EndpointPlan plan = plan_endpoint(options, facts);
  return plan.role == EndpointPlan::Role::Host ||
         (plan.role == EndpointPlan::Role::Join && !options.is_host);
}

EndpointPlan plan_endpoint(const LaunchOptions& options, const EndpointFacts& facts) {
  EndpointPlan plan;
  plan.port = options.endpoint_port;
  const std::string& host = options.endpoint_host;
  if (options.nnodes_max == 1 && (options.standalone || host == "localhost" || host.empty())) {
    plan.bind_address = loopback;
    plan.master_addr = loopback;
    return plan;
  }
  plan.master_addr = host;
  plan.bind_address = listening_address(host, facts);
  if (options.nnodes_max == 1) {
    // Workers of the only node reach any address of it; nobody else has to.
    const auto local = std::find_if(facts.addresses.begin(), facts.addresses.end(), facts.is_local);
    if (plan.bind_address.empty() && local != facts.addresses.end()) plan.bind_address = *local;
    if (facts.addresses.empty() && address_bytes(host).empty()) {
      plan.bind_address = plan.master_addr = loopback;
      plan.warning =
          fmt::format("{} does not resolve: workers of the only node meet at {}", host, loopback);
      return plan;
    }
  } else if (options.backend == RendezvousBackend::Static) {
    plan.role = options.node_rank == 0 ? EndpointPlan::Role::Host : EndpointPlan::Role::Join;
  } else if (options.is_host) {
    plan.role = *options.is_host ? EndpointPlan::Role::Host : EndpointPlan::Role::Join;
  } else {
    plan.role =
        looks_local(host, facts) ? EndpointPlan::Role::HostIfFree : EndpointPlan::Role::Join;
  }
  const bool hosts = plan.role != EndpointPlan::Role::Join;
  const bool listens_everywhere = hosts && plan.bind_address.empty();
  const bool everywhere_given = is_unspecified(host);
  if (listens_everywhere && (options.nnodes_max > 1 || everywhere_given)) {
    choose_address(options, facts, plan);
  }
  if (hosts && !everywhere_given && !looks_local(host, facts)) {
    plan.warning = fmt::format(
        "{} is not an address of this machine, which hosts the endpoint: listening on all "
        "interfaces{}",
        host,
        options.backend == RendezvousBackend::Static && !options.node_rank_given
            ? "; if another machine is node 0, give this one its --node-rank"
            : "");
  }
  return plan;
}

}  // namespace ddprun::launcher
