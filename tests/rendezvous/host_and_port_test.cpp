// Where something listens, in words.
#include "rendezvous/host_and_port.h"

#include "tests/testing/catch.h"

using ddprun::rendezvous::host_and_port;

TEST_CASE("an address of IPv6 stands in brackets, and nothing else does", "[rendezvous]") {
  CHECK(host_and_port("node-1.cluster", 29'500) == "node-1.cluster:29500");
  CHECK(host_and_port("10.0.0.7", 1) == "10.0.0.7:1");
  CHECK(host_and_port("fe80::1%eth0", 65'535) == "[fe80::1%eth0]:65535");
  CHECK(host_and_port("::", "a free port") == "[::]:a free port");
}
