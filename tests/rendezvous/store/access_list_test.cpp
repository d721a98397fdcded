// Who may talk to the store.
#include "rendezvous/store/access_list.h"

#include "tests/testing/catch.h"

using ddprun::rendezvous::AccessList;

namespace {

bool permits(const AccessList& list, const std::string& address) {
  return list.permits(asio::ip::make_address(address));
}

}  // namespace

TEST_CASE("without more, only this machine itself", "[rendezvous][access]") {
  const AccessList list;
  for (const char* own : {"127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"}) {
    INFO(own);
    CHECK(permits(list, own));
  }
  for (const char* other : {"10.0.0.1", "0.0.0.0", "::", "fe80::1", "::ffff:10.0.0.1"}) {
    INFO(other);
    CHECK_FALSE(permits(list, other));
  }
}

TEST_CASE("15.3: members are those of now, whoever the user named stays", "[rendezvous][access]") {
  AccessList list;
  REQUIRE(list.allow("10.0.0.1"));
  list.set_members({"10.0.0.7", "::ffff:10.0.0.8", "not an address", ""});
  CHECK(permits(list, "10.0.0.7"));
  CHECK(permits(list, "10.0.0.8"));

  list.set_members({"10.0.0.8"});

  CHECK_FALSE(permits(list, "10.0.0.7"));
  CHECK(permits(list, "10.0.0.8"));
  CHECK(permits(list, "10.0.0.1"));
}

TEST_CASE("hosts are allowed one by one, in either spelling", "[rendezvous][access]") {
  AccessList list;
  REQUIRE(list.allow("10.0.0.7"));
  REQUIRE(list.allow("fd00::7"));
  REQUIRE(list.allow("::ffff:10.0.0.9"));

  CHECK(permits(list, "10.0.0.7"));
  CHECK(permits(list, "::ffff:10.0.0.7"));
  CHECK(permits(list, "10.0.0.9"));
  CHECK(permits(list, "fd00::7"));
  CHECK_FALSE(permits(list, "10.0.0.8"));
  CHECK_FALSE(permits(list, "fd00::8"));
}

TEST_CASE("networks end at their prefix", "[rendezvous][access]") {
  AccessList list;
  REQUIRE(list.allow("10.1.0.0/16"));
  REQUIRE(list.allow("192.168.5.128/25"));
  REQUIRE(list.allow("fd00::/9"));

  CHECK(permits(list, "10.1.255.255"));
  CHECK_FALSE(permits(list, "10.2.0.0"));
  CHECK(permits(list, "192.168.5.200"));
  CHECK_FALSE(permits(list, "192.168.5.127"));
  CHECK(permits(list, "fd7f::1"));
  CHECK_FALSE(permits(list, "fd80::1"));

  AccessList everyone;
  REQUIRE(everyone.allow("0.0.0.0/0"));
  CHECK(permits(everyone, "8.8.8.8"));
  CHECK_FALSE(permits(everyone, "fd00::1"));
  REQUIRE(everyone.allow("::/0"));
  CHECK(permits(everyone, "fd00::1"));
}

TEST_CASE("what is no address allows nobody", "[rendezvous][access]") {
  AccessList list;
  for (const char* text : {"", "node1", "10.0.0.1/33", "10.0.0.1/", "10.0.0.1/-1", "10.0.0.1/8x",
                           "fd00::/129", "10.0.0", "/8", "10.0.0.1:80"}) {
    INFO(text);
    CHECK_FALSE(list.allow(text));
  }
  CHECK_FALSE(permits(list, "10.0.0.1"));
}
