// Which addresses are this machine's, asked of the real system.
#include "rendezvous/store/own_addresses.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

TEST_CASE("15.3: addresses of this machine are known in each form", "[socket_owner]") {
  OwnAddresses own;
  const auto is_own = [&](const char* address) {
    return own.contains(asio::ip::make_address(address), std::chrono::steady_clock::now());
  };
  CHECK(is_own("127.0.0.1"));
  CHECK(is_own("::ffff:127.0.0.1"));
  CHECK_FALSE(is_own("192.0.2.1"));  // Of no machine: for documents (RFC 5737).
  CHECK_FALSE(is_own("2001:db8::1"));
}
