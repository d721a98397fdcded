// Whose a connection on this machine is, asked of the real kernel.
#include "rendezvous/store/socket_owner.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "rendezvous/store/store_socket.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

namespace {

constexpr uid_t other_user = 54'321;

// A listening socket, and what connects to it.
struct Listening {
  explicit Listening(const std::string& address = "127.0.0.1") : fd(listen_socket(address, 0)) {}
  UniqueFd accept() const {
    pollfd entry{fd.get(), POLLIN, 0};
    REQUIRE(::poll(&entry, 1, -1) == 1);
    return UniqueFd(::accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  UniqueFd connect() const {
    UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(local_port(fd.get()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    return client;
  }
  UniqueFd fd;
};

}  // namespace

TEST_CASE("15.3: the kernel says whose a local connection is", "[socket_owner]") {
  for (const char* address : {"127.0.0.1", ""}) {  // "": an IPv6 socket that serves IPv4, too.
    INFO("listening on \"" << address << "\"");
    const Listening listening(address);
    const SocketOwner owners(listening.fd.get());
    if (!owners.unavailable().empty()) DDPRUN_SKIP("sock_diag: " + owners.unavailable());
    const UniqueFd client = listening.connect();
    const UniqueFd accepted = listening.accept();

    CHECK(SocketOwner::is_local(accepted.get()));
    REQUIRE(owners.of_peer(accepted.get()));
    CHECK(*owners.of_peer(accepted.get()) == ::geteuid());
    CHECK(is_own_user(*owners.of_peer(accepted.get())));
    CHECK(owners.warning("port 1", "connect").empty());
  }
}

TEST_CASE("15.3: where the kernel tells of no owner a person is warned", "[socket_owner]") {
  const UniqueFd unbound(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketOwner owners(unbound.get());
  REQUIRE_FALSE(owners.unavailable().empty());
  CHECK(owners.warning("port 1", "connect") ==
        "port 1: the kernel does not say whose connections from this machine are (" +
            owners.unavailable() + "): its other users can connect, too");
}

TEST_CASE("15.3: another user of this machine is told", "[socket_owner]") {
  if (::geteuid() != 0) DDPRUN_SKIP("to become another user one must be root");
  const Listening listening;
  const SocketOwner owners(listening.fd.get());
  if (!owners.unavailable().empty()) DDPRUN_SKIP("sock_diag: " + owners.unavailable());
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(other_user) != 0) ::_exit(1);
    const UniqueFd client = listening.connect();
    char byte = 0;
    (void)!::read(client.get(), &byte, 1);  // Until the test has asked.
    ::_exit(0);
  }
  {
    const UniqueFd accepted = listening.accept();
    CHECK(owners.of_peer(accepted.get()) == other_user);
    CHECK_FALSE(is_own_user(other_user));
  }
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("15.3: a connection whose maker is gone is nobody's, and not root's", "[socket_owner]") {
  const Listening listening;
  const SocketOwner owners(listening.fd.get());
  if (!owners.unavailable().empty()) DDPRUN_SKIP("sock_diag: " + owners.unavailable());
  UniqueFd client = listening.connect();
  const UniqueFd accepted = listening.accept();
  client.reset();
  CHECK_FALSE(owners.of_peer(accepted.get()));
}
