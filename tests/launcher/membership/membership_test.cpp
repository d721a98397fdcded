// One node's membership against an endpoint that it, or another one in this process, hosts.
#include "launcher/membership/membership.h"

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/secure/security_error.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process.h"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

// A member that writes down what it is told.
struct Member {
  Member(asio::io_context& io, LaunchOptions with) : options(std::move(with)) {
    membership = std::make_unique<Membership>(
        io, options, "here",
        MembershipCallbacks{
            .on_worker_key = [this](rendezvous::UniqueFd) { told.push_back("key"); },
            .on_endpoint_opened =
                [this](const std::string&, int port) {
                  told.push_back("endpoint");
                  endpoint_port = port;
                },
            .on_endpoint_closed = [this] { told.push_back("endpoint closed"); },
            .on_message =
                [this](const rendezvous::ControlMessage& message) {
                  if (std::holds_alternative<rendezvous::RoundStart>(message)) {
                    told.push_back("round");
                  }
                  if (std::holds_alternative<rendezvous::Stop>(message)) {
                    told.push_back("stop");
                  }
                  if (std::holds_alternative<rendezvous::Finish>(message)) {
                    told.push_back("finish");
                  }
                  if (on_message) on_message(message);
                },
            .on_unreachable = [this](const std::string&) { told.push_back("unreachable"); },
            .on_lost = [this](const std::string&, bool) { told.push_back("lost"); }});
    asio::co_spawn(
        io, [this] { return membership->join(); },
        [this](const std::exception_ptr& error) { thrown = error; });
  }

  LaunchOptions options;
  std::vector<std::string> told;
  int endpoint_port = 0;
  std::function<void(const rendezvous::ControlMessage&)> on_message;
  std::exception_ptr thrown;
  std::unique_ptr<Membership> membership;
};

bool heard(const Member& member, const std::string& what) {
  return std::find(member.told.begin(), member.told.end(), what) != member.told.end();
}

template <class Condition>
bool run_until(asio::io_context& io, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + ddprun::testing::patience(10s);
  while (!condition() && std::chrono::steady_clock::now() < end) io.run_one_for(100ms);
  return condition();
}

LaunchOptions alone() {
  LaunchOptions options;
  options.endpoint_port = 0;
  return options;
}

LaunchOptions one_of_two(int rank, int port) {
  LaunchOptions options;
  options.nnodes_min = options.nnodes_max = 2;
  options.node_rank = rank;
  options.endpoint_port = static_cast<std::uint16_t>(port);
  return options;
}

}  // namespace

TEST_CASE("a node alone hosts its endpoint, has its key first and gets its round",
          "[launcher][membership]") {
  asio::io_context io;
  Member member(io, alone());

  REQUIRE(run_until(io, [&] { return heard(member, "round"); }));

  CHECK(member.told == std::vector<std::string>{"key", "endpoint", "round"});
  CHECK(member.endpoint_port > 0);
  CHECK(member.membership->connected());
  CHECK_FALSE(member.membership->may_rejoin());
}

TEST_CASE("who leaves hears nothing more, and the endpoint waits for the others",
          "[launcher][membership]") {
  asio::io_context io;
  const int port = ddprun::testing::free_port();
  Member host(io, one_of_two(0, port));
  Member guest(io, one_of_two(1, port));
  REQUIRE(run_until(io, [&] { return heard(host, "round") && heard(guest, "round"); }));
  bool host_left = false;
  bool guest_left = false;

  host.membership->leave(60s, [&] { host_left = true; });
  const auto told_before = host.told;
  REQUIRE(run_until(io, [&] { return heard(guest, "stop"); }));
  CHECK_FALSE(host_left);
  guest.membership->leave(0s, [&] { guest_left = true; });

  CHECK(run_until(io, [&] { return guest_left; }));
  CHECK(run_until(io, [&] { return host_left; }));
  CHECK(host.told == told_before);
}

TEST_CASE("the end of the connection after the job's is no loss", "[launcher][membership]") {
  asio::io_context io;
  Member host(io, alone());
  bool left = false;
  host.on_message = [&](const rendezvous::ControlMessage& message) {
    if (std::holds_alternative<rendezvous::RoundStart>(message)) {
      host.membership->send(rendezvous::Started{0});
      host.membership->send(rendezvous::WorkersSucceeded{0});
    } else if (std::holds_alternative<rendezvous::Finish>(message)) {
      host.membership->leave(0s, [&] { left = true; });  // From inside a callback.
    }
  };

  CHECK(run_until(io, [&] { return left; }));
  CHECK(host.told == std::vector<std::string>{"key", "endpoint", "round", "finish"});
}

TEST_CASE("a node without the job's secret does not even listen", "[launcher][membership]") {
  asio::io_context io;
  LaunchOptions options = one_of_two(0, ddprun::testing::free_port());
  options.auth = Auth::Secret;
  options.secret_file = "/no/such/folder/secret";
  options.secret_file_given = true;
  Member member(io, options);

  REQUIRE(run_until(io, [&] { return member.thrown != nullptr; }));

  CHECK_THROWS_AS(std::rethrow_exception(member.thrown), rendezvous::SecurityError);
  CHECK(member.told.empty());
}

TEST_CASE("only a guest of an elastic job can be taken back", "[launcher][membership]") {
  asio::io_context io;
  const int port = ddprun::testing::free_port();
  const auto elastic = [&](bool is_host) {
    LaunchOptions options = one_of_two(0, port);
    options.backend = RendezvousBackend::C10d;
    options.is_host = is_host;
    return options;
  };
  Member host(io, elastic(true));
  Member guest(io, elastic(false));
  REQUIRE(run_until(io, [&] { return heard(host, "round") && heard(guest, "round"); }));

  CHECK_FALSE(host.membership->may_rejoin());
  CHECK(guest.membership->may_rejoin());
}
