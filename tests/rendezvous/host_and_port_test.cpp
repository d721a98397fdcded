// Where something listens, in words.
#include "rendezvous/host_and_port.h"

#include "rendezvous/host/loopback_address.h"
#include "tests/testing/catch.h"

using ddprun::rendezvous::host_and_port;
using ddprun::rendezvous::is_loopback_address;

TEST_CASE("an address of IPv6 stands in brackets, and nothing else does", "[rendezvous]") {
  CHECK(host_and_port("node-1.cluster", 29'500) == "node-1.cluster:29500");
  CHECK(host_and_port("10.0.0.7", 1) == "10.0.0.7:1");
  CHECK(host_and_port("fe80::1%eth0", 65'535) == "[fe80::1%eth0]:65535");
  CHECK(host_and_port("::", "a free port") == "[::]:a free port");
}

TEST_CASE("what leads to this machine alone is told by an address's bytes", "[rendezvous]") {
  for (const char* own :
       {"127.0.0.1", "127.8.9.10", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    INFO(own);
    CHECK(is_loopback_address(own));
  }
  for (const char* other : {"127.example.org", "127.0.0.1.example.org", "localhost", "", "10.0.0.7",
                            "::", "::2", "::ffff:10.0.0.7", "fe80::1"}) {
    INFO(other);
    CHECK_FALSE(is_loopback_address(other));
  }
}
