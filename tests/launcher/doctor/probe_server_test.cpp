// Whom the doctor's probe of a host hears while strangers are there as well.
#include "launcher/doctor/probe_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "launcher/doctor/probe_client.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::UniqueFd;

namespace {

UniqueFd connected_to(int port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return socket;
}

// Until `host` has an answer, or is sent away.
void serve_until_answered(ProbeServer& server, const UniqueFd& host) {
  for (;;) {
    std::vector<pollfd> wanted{{host.get(), POLLIN, 0}};
    server.add_to(wanted);
    const auto limit = ddprun::testing::patience(std::chrono::seconds(10));
    REQUIRE(::poll(wanted.data(), wanted.size(), static_cast<int>(limit.count())) > 0);
    if (wanted[0].revents != 0) return;
    server.serve(wanted);
  }
}

}  // namespace

TEST_CASE("strangers that say nothing keep no host of the visit out", "[doctor]") {
  ProbeServer server;
  const Listening listening = server.listen("word", 0);
  REQUIRE(listening.ephemeral_port != 0);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(connected_to(listening.ephemeral_port));
    std::vector<pollfd> wanted;
    server.add_to(wanted);
    ::poll(wanted.data(), wanted.size(), 0);
    server.serve(wanted);
  }

  const UniqueFd host = connected_to(listening.ephemeral_port);
  const std::string greeting = "ddprun-doctor word\n";
  REQUIRE(::send(host.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(greeting.size()));
  serve_until_answered(server, host);

  char answer = 0;
  CHECK(::recv(host.get(), &answer, 1, MSG_DONTWAIT) == 1);
  CHECK(answer == probe_talk::accepted);
}
