// The coordinator behind the job's one port, and agents with the right secret, another one, none,
// and from before there was one; over real sockets.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>
#include <csignal>
#include <random>

#include "rendezvous/control/control_client.h"
#include "rendezvous/control/job_query.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/first_byte.h"
#include "rendezvous/secure/psk.h"
#include "rendezvous/secure/tls_session.h"
#include "rendezvous/server.h"
#include "rendezvous/store/store_socket.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;
using asio::ip::tcp;

namespace {

using Context = std::shared_ptr<const TlsContext>;

Context key_of(const std::string& secret, const std::string& run_id = "job") {
  return std::make_shared<TlsContext>(control_key(SecretBytes::copy_of(secret), run_id));
}

const std::string right(64, 'r'), wrong(64, 'w');

// A job of two nodes on its one port.
struct SecuredEndpoint {
  SecuredEndpoint(asio::io_context& io, const Context& key)
      : server(io, ServerOptions{}, [this](tcp::socket socket, std::string received) {
          coordinator->adopt(std::move(socket), std::move(received));
        }) {
    JobLimits limits;
    limits.run_id = "job";
    limits.round = {.nodes_min = 2, .nodes_max = 2, .join_timeout = 60s};
    limits.master_addr = "127.0.0.1";
    limits.master_port = server.port();
    CoordinatorCallbacks callbacks{[](const RoundName&) {}};
    callbacks.on_query = [this](const Query& query,
                                const std::function<void(const std::string&)>& reply) {
      if (on_query) on_query(query, reply);
    };
    coordinator = std::make_unique<Coordinator>(io, limits, callbacks, Strangers::Limits{}, key);
  }
  std::function<void(const Query&, const std::function<void(const std::string&)>&)> on_query;
  std::unique_ptr<Coordinator> coordinator;
  Server server;
};

struct SecuredNode {
  SecuredNode(asio::io_context& io, int port, int rank, const Context& key) {
    ControlClientOptions options;
    options.host = "127.0.0.1";
    options.port = static_cast<std::uint16_t>(port);
    options.waiting_for = "node 0";
    options.tls = key;
    options.secret_advice = "; copy it";
    options.hello = {.run_id = "job", .node_id = "n" + std::to_string(rank)};
    options.hello.node_rank = rank;
    options.hello.nnodes_min = options.hello.nnodes_max = 2;
    client = std::make_unique<ControlClient>(
        io, options,
        ControlClientCallbacks{[this](const ControlMessage& message) { inbox.push_back(message); },
                               [this](const std::string& why) { lost = why; },
                               [this](const std::string& why, bool) { lost = why; }});
  }
  template <class T>
  const T* heard() const {
    for (const ControlMessage& message : inbox) {
      if (const T* found = std::get_if<T>(&message)) return found;
    }
    return nullptr;
  }

  std::vector<ControlMessage> inbox;
  std::string lost;
  std::unique_ptr<ControlClient> client;
};

template <class Condition>
bool runs_until(asio::io_context& io, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + ddprun::testing::patience(20s);
  io.restart();
  while (!condition() && std::chrono::steady_clock::now() < end) io.run_one_for(100ms);
  return condition();
}

// A socket of a test's own: says what it likes, and hears all until the other side ends.
struct RawPeer {
  RawPeer(asio::io_context& io_, int port) : io(io_), socket(io_) {
    socket.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port)});
    socket.non_blocking(true);
  }
  void say(const std::string& bytes) {
    asio::error_code ignored;
    asio::write(socket, asio::buffer(bytes), ignored);
  }
  // What comes until the other side ends, or `enough` bytes are there.
  std::string hear(std::size_t enough = ~std::size_t{0}) {
    std::string heard;
    const bool ended = runs_until(io, [&] {
      char chunk[4096];
      asio::error_code error;
      const std::size_t size = socket.read_some(asio::buffer(chunk), error);
      heard.append(chunk, size);
      return heard.size() >= enough || (error && error != asio::error::would_block);
    });
    CHECK(ended);
    return heard;
  }

  asio::io_context& io;
  tcp::socket socket;
};

const std::string plain_hello = encode(Hello{.run_id = "job", .node_id = "stranger"});

bool holds(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("nodes with the job's secret form it", "[coordinator][secure]") {
  asio::io_context io;
  SecuredEndpoint endpoint(io, key_of(right));
  SecuredNode a(io, endpoint.server.port(), 0, key_of(right));
  SecuredNode b(io, endpoint.server.port(), 1, key_of(right));
  REQUIRE(runs_until(io, [&] { return a.heard<RoundStart>() && b.heard<RoundStart>(); }));

  a.client->send(WorkersSucceeded{0});
  b.client->send(WorkersSucceeded{0});
  REQUIRE(runs_until(io, [&] { return a.heard<Finish>() && b.heard<Finish>(); }));
  bool idle = false;
  endpoint.coordinator->wait_until_idle(10s, [&] { idle = true; });
  a.client.reset();
  b.client.reset();
  CHECK(runs_until(io, [&] { return idle; }));
}

TEST_CASE("a node with another secret, or for another job, is refused with 73 and what to do",
          "[coordinator][secure]") {
  for (const Context& theirs : {key_of(wrong), key_of(right, "another")}) {
    asio::io_context io;
    SecuredEndpoint endpoint(io, key_of(right));
    SecuredNode a(io, endpoint.server.port(), 0, key_of(right));
    REQUIRE(runs_until(io, [&] { return a.heard<Waiting>(); }));
    SecuredNode stranger(io, endpoint.server.port(), 1, theirs);
    REQUIRE(runs_until(io, [&] { return stranger.heard<Refused>() != nullptr; }));

    CHECK(stranger.inbox.size() == 1);
    CHECK(stranger.heard<Refused>()->exit_status == exit_status::refused);
    holds(stranger.heard<Refused>()->reason,
          "secret or job id is not that of the job at 127.0.0.1");
    holds(stranger.heard<Refused>()->reason, "; copy it");
    CHECK(stranger.lost.empty());
    CHECK(a.lost.empty());
    SecuredNode b(io, endpoint.server.port(), 1, key_of(right));
    CHECK(runs_until(io, [&] { return a.heard<RoundStart>() && b.heard<RoundStart>(); }));
  }
}

TEST_CASE("a node without a secret is told that one is needed, and nothing of the job",
          "[coordinator][secure]") {
  asio::io_context io;
  SecuredEndpoint endpoint(io, key_of(right));
  SecuredNode plain(io, endpoint.server.port(), 1, nullptr);
  REQUIRE(runs_until(io, [&] { return plain.heard<Refused>() != nullptr; }));
  CHECK(plain.heard<Refused>()->exit_status == exit_status::refused);
  holds(plain.heard<Refused>()->reason, "this job needs its secret");

  // An agent from before there was a secret, and whoever imitates one.
  RawPeer old(io, endpoint.server.port());
  old.say(plain_hello);
  old.socket.shutdown(tcp::socket::shutdown_send);
  const std::string answer = old.hear();
  const ParsedLine line = parse_control_message(answer.substr(0, answer.find('\n')));
  REQUIRE(line.message);
  REQUIRE(std::holds_alternative<Refused>(*line.message));
  CHECK(answer.find('\n') == answer.size() - 1);
  CHECK(answer.find("\"job\"") == std::string::npos);
}

TEST_CASE("a node with a secret is told that the job has none", "[coordinator][secure]") {
  asio::io_context io;
  SecuredEndpoint endpoint(io, nullptr);
  SecuredNode careful(io, endpoint.server.port(), 1, key_of(right));
  REQUIRE(runs_until(io, [&] { return careful.heard<Refused>() != nullptr; }));
  CHECK(careful.heard<Refused>()->exit_status == exit_status::refused);
  holds(careful.heard<Refused>()->reason, "runs without a secret");
  holds(careful.heard<Refused>()->reason, "--auth none");
}

TEST_CASE("a member's bytes on the wire admit nobody who repeats them", "[coordinator][secure]") {
  asio::io_context io;
  const Context key = key_of(right);
  SecuredEndpoint endpoint(io, key);
  // A member's part, recorded.
  TlsSession member(key, TlsSession::Role::Client);
  member.receive("");
  member.send(encode(
      Hello{.run_id = "job", .node_id = "m", .node_rank = 1, .nnodes_min = 2, .nnodes_max = 2}));
  std::string recorded = member.take_to_send();
  {
    RawPeer wire(io, endpoint.server.port());
    wire.say(recorded);
    while (!member.established()) member.receive(wire.hear(1));
    const std::string rest = member.take_to_send();
    wire.say(rest);
    recorded += rest;
    std::string welcome;
    while ((welcome += member.take_received()).find("welcome") == std::string::npos) {
      member.receive(wire.hear(1));
    }
  }
  RawPeer thief(io, endpoint.server.port());
  thief.say(recorded);
  const std::string answer = thief.hear();
  CHECK(answer.find("welcome") == std::string::npos);
  TlsSession reader(key, TlsSession::Role::Client);
  reader.receive("");
  reader.receive(answer);
  CHECK(reader.take_received().empty());
}

TEST_CASE("junk at any point of a connection is closed, and the job forms beside it",
          "[coordinator][secure]") {
  asio::io_context io;
  const Context key = key_of(right);
  SecuredEndpoint endpoint(io, key);
  std::mt19937 random(3);
  const auto junk = [&](std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
  };
  for (int round = 0; round < 10; ++round) {
    RawPeer from_the_start(io, endpoint.server.port());
    from_the_start.say(tls_first_byte + junk(100));
    from_the_start.hear();

    TlsSession member(key, TlsSession::Role::Client);
    member.receive("");
    RawPeer after_the_handshake(io, endpoint.server.port());
    after_the_handshake.say(member.take_to_send());
    while (!member.established()) member.receive(after_the_handshake.hear(1));
    after_the_handshake.say(member.take_to_send());
    after_the_handshake.say(std::string("\x17\x03\x03\x00\x40", 5) + junk(64));
    after_the_handshake.hear();
  }
  SecuredNode a(io, endpoint.server.port(), 0, key);
  SecuredNode b(io, endpoint.server.port(), 1, key);
  CHECK(runs_until(io, [&] { return a.heard<RoundStart>() && b.heard<RoundStart>(); }));
}

TEST_CASE("15.6: who is refused again and again is answered after a pause, in TLS and without",
          "[coordinator][secure]") {
  const Strangers::Limits limits;
  for (const bool in_tls : {false, true}) {
    asio::io_context io;
    SecuredEndpoint endpoint(io, key_of(right));
    // The first ones at once, and three more at moments of which any two are a pause apart.
    std::chrono::steady_clock::time_point began;
    for (std::size_t times = 0; times < limits.refused_at_once + 3; ++times) {
      if (times == limits.refused_at_once) began = std::chrono::steady_clock::now();
      TlsSession other(key_of(wrong), TlsSession::Role::Client);
      other.receive("");
      RawPeer stranger(io, endpoint.server.port());
      stranger.say(in_tls ? other.take_to_send() : plain_hello);
      CHECK_FALSE(stranger.hear().empty());
      stranger.socket.close();
    }
    INFO("in TLS " << in_tls);
    CHECK(std::chrono::steady_clock::now() - began >= 2 * limits.pause);
  }
}

TEST_CASE("who begins a handshake and stops keeps nobody from ending the job",
          "[coordinator][secure]") {
  asio::io_context io;
  const Context key = key_of(right);
  SecuredEndpoint endpoint(io, key);
  TlsSession member(key, TlsSession::Role::Client);
  member.receive("");
  RawPeer slow(io, endpoint.server.port());
  slow.say(member.take_to_send().substr(0, 50));
  SecuredNode a(io, endpoint.server.port(), 0, key);
  REQUIRE(runs_until(io, [&] { return a.heard<Waiting>() != nullptr; }));

  bool idle = false;
  a.client.reset();
  endpoint.coordinator->wait_until_idle(10min, [&] { idle = true; });
  CHECK(runs_until(io, [&] { return idle; }));
}

namespace {

// What makes an agent start its workers.
std::string start_of_workers() {
  return encode(RoundStart{.master_addr = "127.0.0.1", .master_port = 29500});
}

// A process of another user that listens on loopback and welcomes whoever connects.
class ForeignCoordinator {
 public:
  explicit ForeignCoordinator(bool closes_at_once) {
    int told[2];
    REQUIRE(::pipe(told) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      if (::setuid(54'321) != 0) ::_exit(1);
      const UniqueFd listener = listen_socket("127.0.0.1", 0);
      const int own = local_port(listener.get());
      (void)!::write(told[1], &own, sizeof own);
      pollfd entry{listener.get(), POLLIN, 0};
      ::poll(&entry, 1, -1);
      const int connection = ::accept(listener.get(), nullptr, nullptr);
      const std::string line = encode(Welcome{}) + start_of_workers();
      (void)!::write(connection, line.data(), line.size());
      if (closes_at_once) ::_exit(0);
      ::pause();
    }
    ::close(told[1]);
    REQUIRE(::read(told[0], &port, sizeof port) == sizeof port);
    ::close(told[0]);
  }
  ~ForeignCoordinator() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ForeignCoordinator(const ForeignCoordinator&) = delete;
  int port = 0;

 private:
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("15.3: an agent does not follow a coordinator of another user of its machine",
          "[secure][control]") {
  if (::geteuid() != 0) DDPRUN_SKIP("to become another user one must be root");
  REQUIRE(parse_control_message(start_of_workers()).message);  // It would be followed.
  for (const bool closes_at_once : {false, true}) {
    asio::io_context io;
    const ForeignCoordinator coordinator(closes_at_once);
    const SecuredNode node(io, coordinator.port, 1, nullptr);
    INFO(node.lost);
    REQUIRE(runs_until(io, [&] { return node.heard<Refused>() != nullptr || !node.lost.empty(); }));
    CHECK(node.heard<RoundStart>() == nullptr);
    if (!closes_at_once) {
      CHECK(node.heard<Welcome>() == nullptr);
      REQUIRE(node.heard<Refused>() != nullptr);
      CHECK(node.heard<Refused>()->reason.find("another user of this machine (uid 54321)") !=
            std::string::npos);
    }
  }
}

TEST_CASE("17.2: of a job with a secret only who proves it sees anything", "[secure][control]") {
  asio::io_context io;
  SecuredEndpoint endpoint(io, key_of(right));
  int questions = 0;
  const auto ask = [&](const Context& key) {
    std::optional<QueryAnswer> answer;
    query_coordinator(
        io, "127.0.0.1", endpoint.server.port(), {.number = 1, .run_id = "job", .what = "snapshot"},
        key, ddprun::testing::patience(20s), [&](const QueryAnswer& given) { answer = given; });
    REQUIRE(runs_until(io, [&] { return answer.has_value(); }));
    return *answer;
  };
  for (const Context& key : {key_of(wrong), key_of(right, "other"), Context()}) {
    const QueryAnswer answer = ask(key);
    CHECK_FALSE(answer.text);
    REQUIRE(answer.refused);
    CHECK(answer.refused->exit_status == exit_status::refused);
  }
  CHECK(questions == 0);
  endpoint.on_query = [&](const Query&, const std::function<void(const std::string&)>& reply) {
    ++questions;
    reply("{}");
  };
  CHECK(ask(key_of(right)).text == "{}");
  CHECK(questions == 1);
  ask(key_of(wrong));
  CHECK(questions == 1);

  // Somebody with the secret at a job that has none.
  SecuredEndpoint plain(io, nullptr);
  std::optional<QueryAnswer> answer;
  query_coordinator(io, "127.0.0.1", plain.server.port(), {.run_id = "job", .what = "snapshot"},
                    key_of(right), ddprun::testing::patience(20s),
                    [&](const QueryAnswer& given) { answer = given; });
  REQUIRE(runs_until(io, [&] { return answer.has_value(); }));
  REQUIRE(answer->refused);
  CHECK(answer->refused->reason.find("without a secret") != std::string::npos);
}
