// Who listens at the endpoint, and where.
#include "launcher/membership/endpoint.h"

#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include "launcher/machine/local_addresses.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using Role = EndpointPlan::Role;

namespace {

// A machine with the addresses 10.0.0.5 and loopback, called "this".
EndpointFacts machine(std::vector<std::string> addresses) {
  return {.addresses = std::move(addresses),
          .own_host_name = "this",
          .own_addresses = {"127.0.0.1", "fe80::1%eth0", "fd00::5", "10.0.0.5", "192.168.0.5"},
          .is_local = [](const std::string& address) {
            return address == "10.0.0.5" || address.rfind("127.", 0) == 0;
          }};
}

LaunchOptions nodes(int count, std::string host, int node_rank = 0) {
  LaunchOptions options;
  options.nnodes_min = options.nnodes_max = count;
  options.endpoint_host = std::move(host);
  options.node_rank = node_rank;
  return options;
}

LaunchOptions elastic(std::string host) {
  LaunchOptions options = nodes(2, std::move(host));
  options.backend = RendezvousBackend::C10d;
  return options;
}

}  // namespace

TEST_CASE("one node listens on loopback only", "[launcher][endpoint]") {
  const EndpointPlan plain = plan_endpoint(nodes(1, "127.0.0.1"), machine({"127.0.0.1"}));
  CHECK(plain.role == Role::Host);
  CHECK(plain.bind_address == "127.0.0.1");
  CHECK(plain.master_addr == "127.0.0.1");

  for (const char* host : {"localhost", ""}) {
    const EndpointPlan plan = plan_endpoint(nodes(1, host), machine({}));
    CHECK(plan.bind_address == "127.0.0.1");
    CHECK(plan.warning.empty());
  }
}

TEST_CASE("a secret is needed where another host could join", "[launcher][endpoint]") {
  CHECK(needs_secret(nodes(2, "10.0.0.5")));
  CHECK(needs_secret(nodes(2, "this", 1)));
  CHECK(needs_secret(elastic("this")));
  CHECK(needs_secret(nodes(2, "fe80::1")));
  CHECK_FALSE(needs_secret(nodes(1, "10.0.0.5")));
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1"}) {
    CHECK_FALSE(needs_secret(nodes(2, host)));
    // And then no other host gets in.
    CHECK(plan_endpoint(nodes(2, host), machine({})).bind_address != "");
    LaunchOptions asked = nodes(2, host);
    asked.auth = Auth::Secret;
    CHECK(needs_secret(asked));
  }
  LaunchOptions open = nodes(2, "10.0.0.5");
  open.auth = Auth::None;
  CHECK_FALSE(needs_secret(open));
  CHECK(another_host_may_join(open));
  // What workers derive from it they need on one node, too.
  for (const auto wish : {&LaunchOptions::store_auth, &LaunchOptions::encrypt_gradients}) {
    LaunchOptions alone = nodes(1, "localhost");
    alone.*wish = true;
    CHECK(needs_secret(alone));
  }
}

TEST_CASE("a job is taken over from three nodes on, or from two that have an arbiter",
          "[launcher][endpoint]") {
  const auto may = [](int count, const auto& change) {
    LaunchOptions options = nodes(count, "10.0.0.5");
    options.backend = RendezvousBackend::C10d;
    change(options);
    return may_be_taken_over(options);
  };
  const auto as_it_is = [](LaunchOptions&) {};
  const auto by_file = [](LaunchOptions& options) { options.tie_breaker = "/shared/tie"; };
  const auto by_etcd = [](LaunchOptions& options) { options.etcd.urls = {"http://etcd:2379"}; };
  const auto fixed = [](LaunchOptions& options) { options.backend = RendezvousBackend::Static; };
  CHECK(may(3, as_it_is));
  CHECK_FALSE(may(2, as_it_is));
  CHECK(may(2, by_file));
  CHECK_FALSE(may(1, by_file));
  CHECK(may(2, by_etcd));
  CHECK_FALSE(may(3, [](LaunchOptions& options) { options.takeover = false; }));
  CHECK_FALSE(may(3, fixed));  // Only where it is asked for.
  CHECK(may(3, [&](LaunchOptions& options) {
    fixed(options);
    options.takeover = true;
  }));
}

TEST_CASE("localhost is where its name leads, which may be ::1 alone", "[launcher][endpoint]") {
  for (const LaunchOptions& options : {nodes(2, "localhost"), elastic("localhost")}) {
    CHECK(needs_addresses(options));
    CHECK(plan_endpoint(options, machine({"::1"})).bind_address == "::1");
    CHECK(plan_endpoint(options, machine({"::1", "127.0.0.1"})).bind_address == "127.0.0.1");
    CHECK(plan_endpoint(options, machine({"10.0.0.9"})).bind_address == "127.0.0.1");
    // Not known at all, as in a container without a hosts file: nothing is waited for.
    CHECK(plan_endpoint(options, machine({})).bind_address == "127.0.0.1");
    CHECK_FALSE(waits_for_name(options, machine({})));
    CHECK(plan_endpoint(options, machine({"::1"})).warning.empty());
  }
  CHECK_FALSE(needs_addresses(nodes(1, "localhost")));
}

TEST_CASE("one node with an address of its own listens there", "[launcher][endpoint]") {
  const EndpointPlan plan = plan_endpoint(nodes(1, "this"), machine({"127.0.1.1"}));

  CHECK(plan.bind_address == "127.0.1.1");
  CHECK(plan.master_addr == "this");
}

TEST_CASE("static: node 0 listens on the endpoint's address and the others join",
          "[launcher][endpoint]") {
  const EndpointPlan host = plan_endpoint(nodes(2, "10.0.0.5"), machine({"10.0.0.5"}));
  CHECK(host.role == Role::Host);
  CHECK(host.bind_address == "10.0.0.5");
  CHECK(host.warning.empty());

  CHECK(plan_endpoint(nodes(2, "10.0.0.5", 1), machine({})).role == Role::Join);
}

TEST_CASE("a name that means loopback here must not shut the other nodes out",
          "[launcher][endpoint]") {
  const EndpointPlan plan = plan_endpoint(nodes(2, "this"), machine({"127.0.1.1"}));
  CHECK(plan.bind_address.empty());
  CHECK(plan_endpoint(nodes(2, "this"), machine({"127.0.1.1", "10.0.0.5"})).bind_address ==
        "10.0.0.5");
}

TEST_CASE("workers of a host that calls itself loopback do not offer that to the others",
          "[launcher][endpoint]") {
  // What they tell their peers is the address at which they have reached the store.
  EndpointFacts debian = machine({"127.0.1.1"});
  for (const LaunchOptions& options : {nodes(2, "this"), elastic("this")}) {
    const EndpointPlan plan = plan_endpoint(options, debian);
    CHECK(plan.master_addr == "10.0.0.5");
    CHECK(plan.address_from == EndpointPlan::AddressFrom::Machine);
    CHECK(plan.warning.empty());
  }
  // Of several the name's own.
  EndpointFacts several = machine({"127.0.1.1", "192.168.0.5", "10.0.0.5"});
  several.is_local = [](const std::string&) { return true; };
  CHECK(plan_endpoint(nodes(2, "this"), several).master_addr == "192.168.0.5");
  // Where there is no loopback address, or no other one, the name stays.
  several.addresses = {"192.168.0.5", "10.0.0.5"};
  CHECK(plan_endpoint(nodes(2, "this"), several).master_addr == "this");
  debian.own_addresses = {"127.0.0.1", "::1"};
  CHECK(plan_endpoint(nodes(2, "this"), debian).master_addr == "this");
}

TEST_CASE("an endpoint that is not local is listened for everywhere, with a warning",
          "[launcher][endpoint]") {
  const EndpointPlan plan = plan_endpoint(nodes(2, "10.0.0.9"), machine({"10.0.0.9"}));

  CHECK(plan.role == Role::Host);
  CHECK(plan.bind_address.empty());
  CHECK(plan.warning.find("10.0.0.9") != std::string::npos);
  // Who has said which node it is need not be asked to.
  CHECK(plan.warning.find("--node-rank") != std::string::npos);
  LaunchOptions known = nodes(2, "10.0.0.9"), hosting = elastic("10.0.0.9");
  known.node_rank_given = true;
  hosting.is_host = true;
  for (const LaunchOptions& options : {known, hosting}) {
    const std::string warning = plan_endpoint(options, machine({"10.0.0.9"})).warning;
    CHECK(warning.find("10.0.0.9") != std::string::npos);
    CHECK(warning.find("--node-rank") == std::string::npos);
  }
}

TEST_CASE("who listens everywhere tells its workers an address that others reach",
          "[launcher][endpoint]") {
  for (const char* everywhere : {"0.0.0.0", "::", "0:0:0:0:0:0:0:0"}) {
    CHECK(is_unspecified(everywhere));
    LaunchOptions options = nodes(2, everywhere);
    const EndpointPlan plan = plan_endpoint(options, machine({everywhere}));
    CHECK(plan.bind_address.empty());
    CHECK(plan.master_addr == "10.0.0.5");
    CHECK(plan.address_from == EndpointPlan::AddressFrom::Machine);
    EndpointFacts alone = machine({everywhere});
    alone.own_addresses = {"127.0.0.1", "::1", "fe80::1%eth0"};
    CHECK(plan_endpoint(options, alone).master_addr == everywhere);
    alone.own_addresses = {"::1", "fd00::5"};
    CHECK(plan_endpoint(options, alone).master_addr == "fd00::5");
    const EndpointPlan only = plan_endpoint(nodes(1, everywhere), machine({everywhere}));
    CHECK(only.master_addr == "10.0.0.5");
    CHECK(only.warning.empty());
    options.local_addr = "192.168.0.5";
    const EndpointPlan given = plan_endpoint(options, machine({everywhere}));
    CHECK(given.master_addr == "192.168.0.5");
    CHECK(given.address_from == EndpointPlan::AddressFrom::LocalAddr);
    options.node_rank = 1;
    CHECK(plan_endpoint(options, machine({everywhere})).master_addr == everywhere);
  }
  for (const char* one : {"10.0.0.5", "0.0.0.1", "this", "::1", ""})
    CHECK_FALSE(is_unspecified(one));
  // Where it listens at one address alone, that is the way.
  LaunchOptions options = nodes(2, "10.0.0.5");
  options.local_addr = "192.168.0.5";
  CHECK(plan_endpoint(options, machine({"10.0.0.5"})).master_addr == "10.0.0.5");
}

TEST_CASE("workers find the store where their node has found the endpoint",
          "[launcher][endpoint]") {
  LaunchOptions options = nodes(2, "10.0.0.5", 1);
  options.endpoint_port = 29500;
  CHECK(store_host(options, true, "0.0.0.0", 29500) == "10.0.0.5");
  CHECK(store_host(options, true, "head", 29500) == "10.0.0.5");
  // Another node coordinates since; the store is behind another port than the one that was come to.
  CHECK(store_host(options, false, "10.0.0.7", 29500) == "10.0.0.7");
  CHECK(store_host(options, true, "head", 40000) == "head");
  options.endpoint_host = "localhost";  // A tunnel's end, or nodes of one machine.
  CHECK(store_host(options, true, "head", 29500) == "head");
  options = nodes(1, "10.0.0.5");
  CHECK(store_host(options, true, "127.0.0.1", 29500) == "127.0.0.1");
}

TEST_CASE("the store's own node finds it where the others have come to", "[launcher][endpoint]") {
  const auto machine_of_two = [](std::vector<std::string> addresses) {
    EndpointFacts facts = machine(std::move(addresses));
    facts.is_local = [](const std::string&) { return true; };
    return facts;
  };
  const EndpointPlan named =
      plan_endpoint(nodes(2, "head"), machine_of_two({"10.0.0.5", "192.168.0.5"}));
  CHECK(named.master_addr == "head");
  CHECK(leaders_store_host(named, "head", {}) == "head");  // They are all of this machine.
  CHECK(leaders_store_host(named, "head", {"192.168.0.5", "192.168.0.5"}) == "192.168.0.5");
  CHECK(leaders_store_host(named, "head", {"192.168.0.5", "10.0.0.5"}) == "head");
  CHECK(leaders_store_host(named, "head", {"127.0.0.1"}) == "head");  // A tunnel's end.
  CHECK(leaders_store_host(named, "head", {"172.16.0.5"}) == "head");
  const EndpointPlan one = plan_endpoint(nodes(2, "head"), machine_of_two({"10.0.0.5"}));
  CHECK(leaders_store_host(one, "head", {"10.0.0.5"}) == "head");  // The name will do.
  for (const char* unclear : {"0.0.0.0", "head"}) {
    const EndpointPlan any = plan_endpoint(nodes(2, unclear), machine_of_two({"127.0.1.1"}));
    CHECK(any.master_addr == "10.0.0.5");
    CHECK(leaders_store_host(any, any.master_addr, {"192.168.0.5"}) == "192.168.0.5");
  }
  LaunchOptions options = nodes(2, "head");
  options.local_addr = "10.0.0.5";  // As its user wants it.
  const EndpointPlan given = plan_endpoint(options, machine_of_two({"10.0.0.5", "192.168.0.5"}));
  CHECK(leaders_store_host(given, given.master_addr, {"192.168.0.5"}) == "10.0.0.5");
  // No name of this machine: what is before it may send the others to any address.
  const EndpointPlan elsewhere = plan_endpoint(nodes(2, "service"), machine({"172.16.0.9"}));
  CHECK(leaders_store_host(elsewhere, "service", {"10.0.0.5"}) == "service");
}

TEST_CASE("c10d: whoever is local to the endpoint may host it", "[launcher][endpoint]") {
  CHECK(plan_endpoint(elastic("10.0.0.5"), machine({"10.0.0.5"})).role == Role::HostIfFree);
  CHECK(plan_endpoint(elastic("this"), machine({})).role == Role::HostIfFree);
  CHECK(plan_endpoint(elastic("localhost"), machine({})).role == Role::HostIfFree);
  CHECK(plan_endpoint(elastic("10.0.0.9"), machine({"10.0.0.9"})).role == Role::Join);
}

TEST_CASE("c10d: is_host settles it", "[launcher][endpoint]") {
  LaunchOptions options = elastic("10.0.0.9");
  options.is_host = true;
  CHECK(plan_endpoint(options, machine({"10.0.0.9"})).role == Role::Host);
  options = elastic("10.0.0.5");
  options.is_host = false;
  CHECK(plan_endpoint(options, machine({"10.0.0.5"})).role == Role::Join);
}

TEST_CASE("the only node needs no name that resolves", "[launcher][endpoint]") {
  const EndpointPlan plan = plan_endpoint(nodes(1, "pod-0.train"), machine({}));
  CHECK(plan.bind_address == "127.0.0.1");
  CHECK(plan.master_addr == "127.0.0.1");
  CHECK(plan.warning.find("pod-0.train does not resolve") != std::string::npos);
  CHECK_FALSE(waits_for_name(nodes(1, "pod-0.train"), machine({})));
}

TEST_CASE("who may host waits until the endpoint's name resolves", "[launcher][endpoint]") {
  CHECK(waits_for_name(nodes(2, "pod-0.train"), machine({})));
  CHECK(waits_for_name(elastic("pod-0.train"), machine({})));
  LaunchOptions host = elastic("pod-0.train");
  host.is_host = true;
  CHECK(waits_for_name(host, machine({})));
  // It does, here or elsewhere; it is this machine's own; another node waits for it.
  CHECK_FALSE(waits_for_name(elastic("pod-0.train"), machine({"10.0.0.5"})));
  CHECK_FALSE(waits_for_name(elastic("pod-0.train"), machine({"10.0.0.9"})));
  CHECK_FALSE(waits_for_name(elastic("this"), machine({})));
  CHECK_FALSE(waits_for_name(nodes(2, "pod-0.train", 1), machine({})));
  host.is_host = false;
  CHECK_FALSE(waits_for_name(host, machine({})));
}

TEST_CASE("names are only looked up by nodes that may host the endpoint", "[launcher][endpoint]") {
  CHECK_FALSE(needs_addresses(nodes(2, "somewhere", 1)));
  CHECK(needs_addresses(nodes(2, "somewhere", 0)));
  CHECK_FALSE(needs_addresses(nodes(1, "localhost")));
  CHECK(needs_addresses(elastic("somewhere")));
  LaunchOptions alone = nodes(1, "somewhere");
  alone.standalone = true;
  CHECK_FALSE(needs_addresses(alone));
}

TEST_CASE("the system knows its own addresses", "[launcher][endpoint]") {
  CHECK(is_local_address("127.0.0.1"));
  CHECK_FALSE(is_local_address("192.0.2.1"));  // Reserved for documentation.
  CHECK_FALSE(is_local_address("not an address"));
}

TEST_CASE("the holder of a port is found", "[launcher][endpoint]") {
  asio::io_context io;
  const asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});

  const std::string holder = port_holder(acceptor.local_endpoint().port());

  CHECK(holder.find("pid " + std::to_string(getpid())) == 0);
}
