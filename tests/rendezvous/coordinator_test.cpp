// The coordinator and its clients over loopback sockets, in one event loop.
#include "rendezvous/coordinator.h"

#include <algorithm>
#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "rendezvous/control/control_client.h"
#include "rendezvous/control/job_query.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;
using asio::ip::tcp;

namespace {

const tcp::endpoint any_port(asio::ip::address_v4::loopback(), 0);

// A coordinator behind a plain listening socket.
struct Endpoint {
  Endpoint(asio::io_context& io, int nodes, int max_restarts, Strangers::Limits strangers = {},
           const tcp::endpoint& listens = any_port)
      : acceptor(io, listens) {
    JobLimits limits;
    limits.run_id = "job";
    limits.round = {.nodes_min = nodes, .nodes_max = nodes, .join_timeout = 60s};
    limits.restarts.restarts_max = max_restarts;
    limits.master_addr = "127.0.0.1";
    limits.master_port = port();
    coordinator = std::make_unique<Coordinator>(
        io, limits,
        CoordinatorCallbacks{[this](const RoundName& round) { attempts.push_back(round.attempt); }},
        strangers);
    accept();
  }
  void accept() {
    acceptor.async_accept([this](const asio::error_code& error, tcp::socket socket) {
      if (error) return;
      coordinator->adopt(std::move(socket), "");
      accept();
    });
  }
  int port() const { return acceptor.local_endpoint().port(); }

  tcp::acceptor acceptor;
  std::unique_ptr<Coordinator> coordinator;
  std::vector<int> attempts;
};

struct Node {
  Node(asio::io_context& io, int port, int rank, int nodes, std::string run_id = "job",
       std::string host = "127.0.0.1", std::chrono::milliseconds join_timeout = 60s,
       bool tells = false) {
    ControlClientOptions options;
    options.host = std::move(host);
    options.port = static_cast<std::uint16_t>(port);
    options.waiting_for = "node 0";
    options.join_timeout = join_timeout;
    options.hello = {.run_id = std::move(run_id), .node_id = "n" + std::to_string(rank)};
    options.hello.node_rank = rank;
    options.hello.tells = tells;
    options.hello.nnodes_min = options.hello.nnodes_max = nodes;
    client = std::make_unique<ControlClient>(
        io, options,
        ControlClientCallbacks{[this](const ControlMessage& m) { inbox.push_back(m); },
                               [this](const std::string& why) { unreachable = why; },
                               [this](const std::string& why, bool) { lost = why; }});
  }
  template <class T>
  const T* find() const {
    for (const ControlMessage& message : inbox) {
      if (const T* found = std::get_if<T>(&message)) return found;
    }
    return nullptr;
  }

  std::vector<ControlMessage> inbox;
  std::string unreachable;
  std::string lost;
  std::unique_ptr<ControlClient> client;
};

template <class Condition>
bool run_until(asio::io_context& io, Condition condition, std::chrono::seconds limit = 20s) {
  const auto end = std::chrono::steady_clock::now() + ddprun::testing::patience(limit);
  io.restart();
  while (!condition() && std::chrono::steady_clock::now() < end) io.run_one_for(100ms);
  return condition();
}

// A raw connection that says `text` and waits for the end of what comes back.
std::string reply_to(asio::io_context& io, int port, const std::string& text) {
  tcp::socket socket(io);
  socket.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port)});
  asio::error_code ignored;
  asio::write(socket, asio::buffer(text), ignored);
  socket.non_blocking(true);
  std::string reply;
  const bool ended = run_until(io, [&] {
    char chunk[4096];
    asio::error_code error;
    const std::size_t size = socket.read_some(asio::buffer(chunk), error);
    reply.append(chunk, size);
    return error && error != asio::error::would_block;
  });
  CHECK(ended);
  return reply;
}

}  // namespace

TEST_CASE("agents join, fail together, start again together and finish",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 2, 1);
  Node a(io, endpoint.port(), 0, 2);
  Node b(io, endpoint.port(), 1, 2);
  REQUIRE(run_until(io, [&] { return a.find<RoundStart>() && b.find<RoundStart>(); }));
  CHECK(b.find<RoundStart>()->group_rank == 1);

  a.inbox.clear();
  b.client->send(WorkerFailed{0, {.rank = 1, .pid = 5, .exit_code = 3}});
  b.client->send(Reaped{0});
  REQUIRE(run_until(io, [&] { return a.find<Stop>() != nullptr; }));
  a.client->send(Reaped{0});
  REQUIRE(run_until(io, [&] { return a.find<RoundStart>() != nullptr; }));
  CHECK(a.find<RoundStart>()->attempt == 1);
  CHECK(endpoint.attempts == std::vector<int>{0, 1});

  a.client->send(WorkersSucceeded{1});
  b.client->send(WorkersSucceeded{1});
  REQUIRE(run_until(io, [&] { return a.find<Finish>() && b.find<Finish>(); }));
  CHECK(a.find<Finish>()->exit_status == 0);
  bool idle = false;
  endpoint.coordinator->wait_until_idle(10s, [&] { idle = true; });
  a.client.reset();
  b.client.reset();
  CHECK(run_until(io, [&] { return idle; }));
}

TEST_CASE("the addresses to which agents of other machines have come are known",
          "[rendezvous][coordinator]") {
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    asio::io_context io;
    Endpoint endpoint(io, 1, 0, {}, {asio::ip::make_address(address), 0});
    tcp::socket stranger(io);
    stranger.connect(endpoint.acceptor.local_endpoint());
    Node a(io, endpoint.port(), 0, 1, "job", address);
    REQUIRE(run_until(io, [&] { return a.find<RoundStart>() != nullptr; }));
    // The kernel lets it come from 127.0.0.1, as if that were another machine's address.
    const bool is_other = std::string(address) == "127.0.0.2";
    CHECK(endpoint.coordinator->came_to() ==
          (is_other ? std::vector<std::string>{address} : std::vector<std::string>{}));
  }
}

TEST_CASE("an agent that goes away is noticed at once", "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 2, 0);
  Node a(io, endpoint.port(), 0, 2);
  auto b = std::make_unique<Node>(io, endpoint.port(), 1, 2);
  REQUIRE(run_until(io, [&] { return a.find<RoundStart>() && b->find<RoundStart>(); }));

  const auto before = std::chrono::steady_clock::now();
  b.reset();
  REQUIRE(run_until(io, [&] { return a.find<Stop>() != nullptr; }));

  // By its connection's end, and not by the heartbeats that it owes.
  CHECK(std::chrono::steady_clock::now() - before < ddprun::testing::patience(500ms));
  CHECK(a.find<Stop>()->final_verdict);
}

TEST_CASE("the loss of the coordinator is told to the agent with its address",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 2, 0);
  Node a(io, endpoint.port(), 0, 2);
  REQUIRE(run_until(io, [&] { return a.find<Welcome>() != nullptr; }));

  endpoint.coordinator.reset();
  REQUIRE(run_until(io, [&] { return !a.lost.empty(); }));

  CHECK(a.lost ==
        "node 0 at 127.0.0.1:" + std::to_string(endpoint.port()) + ": it closed the connection");
}

TEST_CASE("an agent of another job is refused at once", "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 2, 0);

  Node stranger(io, endpoint.port(), 1, 2, "other");
  REQUIRE(run_until(io, [&] { return stranger.find<Refused>() != nullptr; }));

  CHECK(stranger.find<Refused>()->exit_status == exit_status::refused);
}

TEST_CASE("an agent that nobody answers says so after the join timeout",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  const int free_port = tcp::acceptor(io, any_port).local_endpoint().port();

  Node alone(io, free_port, 1, 2, "job", "127.0.0.1", 300ms);
  REQUIRE(run_until(io, [&] { return !alone.unreachable.empty(); }));

  CHECK(alone.unreachable.find("127.0.0.1:" + std::to_string(free_port)) != std::string::npos);
  CHECK(alone.unreachable.find("connection refused") != std::string::npos);
}

// As from a machine that lost power right after its kernel had taken the connection.
TEST_CASE("who takes the connection and says nothing is not waited for without an end",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  tcp::acceptor mute(io, any_port);
  Node node(io, mute.local_endpoint().port(), 1, 2, "job", "127.0.0.1", 300ms);
  REQUIRE(run_until(io, [&] { return !node.unreachable.empty(); }));
  CHECK(node.unreachable.find("took the connection, but did not answer") != std::string::npos);
  CHECK(node.lost.empty());
  CHECK_FALSE(node.client->connected());
}

TEST_CASE("16.1: a connection that is closed before the welcome is made again",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 2, 0);
  int closed = 0;
  tcp::acceptor busy(io, any_port);
  const std::function<void()> accept = [&] {
    busy.async_accept([&](const asio::error_code& error, tcp::socket socket) {
      if (error) return;
      // Twice without a word; then the coordinator takes it.
      if (++closed > 2) endpoint.coordinator->adopt(std::move(socket), "");
      accept();
    });
  };
  accept();
  Node node(io, busy.local_endpoint().port(), 0, 2);
  REQUIRE(run_until(io, [&] { return node.find<Welcome>() != nullptr; }));
  CHECK(closed == 3);
  CHECK(node.lost.empty());
  CHECK(node.client->connected());

  // Once it is let in, the end of the connection is a loss.
  endpoint.coordinator.reset();
  REQUIRE(run_until(io, [&] { return !node.lost.empty(); }));
}

TEST_CASE("16.1: an endpoint that closes every connection is given up after the join timeout",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  tcp::acceptor busy(io, any_port);
  const std::function<void()> accept = [&] {
    busy.async_accept([&](const asio::error_code& error, const tcp::socket&) {
      if (!error) accept();
    });
  };
  accept();
  Node node(io, busy.local_endpoint().port(), 0, 2, "job", "127.0.0.1", 300ms);
  REQUIRE(run_until(io, [&] { return !node.unreachable.empty(); }));
  CHECK(node.unreachable.find(" before it answered; another program, such as torchrun") !=
        std::string::npos);
  CHECK(node.lost.empty());
}

TEST_CASE("a host name that cannot be resolved is named", "[rendezvous][coordinator]") {
  asio::io_context io;

  Node lost(io, 1, 1, 2, "job", "no-such-host.invalid", 200ms);
  REQUIRE(run_until(
      io, [&] { return !lost.unreachable.empty(); }, 60s));

  CHECK(lost.unreachable.find("cannot resolve the host name \"no-such-host.invalid\"") !=
        std::string::npos);
}

TEST_CASE("a name is looked up before each try, and who hears whose it is may do without the try",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  const int port = tcp::acceptor(io, any_port).local_endpoint().port();
  ControlClientOptions options;
  options.host = "localhost";
  options.port = static_cast<std::uint16_t>(port);
  int looks = 0;
  std::string told;
  const ControlClient client(io, options,
                             {.on_message = [&](const ControlMessage&) { told = "message"; },
                              .on_unreachable = [&](const std::string& why) { told = why; },
                              .on_lost = [&](const std::string& why, bool) { told = why; },
                              .on_addresses =
                                  [&](const std::vector<std::string>& addresses) {
                                    CHECK_FALSE(addresses.empty());
                                    return ++looks == 3;
                                  }});

  // Nothing is left to do once that was its answer.
  REQUIRE(run_until(io, [&] { return io.stopped(); }));

  CHECK(looks == 3);
  CHECK(told.empty());
  CHECK_FALSE(client.connected());
}

TEST_CASE("an agent keeps trying until the coordinator is there", "[rendezvous][coordinator]") {
  asio::io_context io;
  const int port = tcp::acceptor(io, any_port).local_endpoint().port();
  Node early(io, port, 0, 1);
  run_until(
      io, [] { return false; }, 1s);
  CHECK(early.inbox.empty());

  tcp::acceptor late(io);
  late.open(tcp::v4());
  late.set_option(tcp::acceptor::reuse_address(true));
  late.bind({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port)});
  late.listen();
  bool came = false;
  late.async_accept([&](const asio::error_code& error, tcp::socket) { came = !error; });

  CHECK(run_until(io, [&] { return came; }));
}

TEST_CASE("garbage closes the connection and nothing else", "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 1, 0);

  CHECK(reply_to(io, endpoint.port(), "{not json\n").empty());
  CHECK(reply_to(io, endpoint.port(), "{" + std::string(70'000, 'x')).empty());
  CHECK(reply_to(io, endpoint.port(), "{\"type\":\"reaped\",\"attempt\":0,\"term\":0}\n")
            .find("refused") != std::string::npos);

  Node good(io, endpoint.port(), 0, 1);
  CHECK(run_until(io, [&] { return good.find<RoundStart>() != nullptr; }));
}

TEST_CASE("15.5: silent connections give way to an agent, and their number is bounded",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 1, 0, {.total_max = 8, .per_host_max = 8});
  std::vector<tcp::socket> silent;
  const auto connect = [&] {
    tcp::socket& socket = silent.emplace_back(io);
    socket.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(endpoint.port())});
    socket.non_blocking(true);
  };
  const auto open = [&] {
    return std::count_if(silent.begin(), silent.end(), [](tcp::socket& socket) {
      char byte = 0;
      asio::error_code error;
      socket.read_some(asio::buffer(&byte, 1), error);
      return error == asio::error::would_block;
    });
  };
  for (int i = 0; i < 40; ++i) connect();
  CHECK(run_until(io, [&] { return open() == 8; }));

  Node good(io, endpoint.port(), 0, 1);
  CHECK(run_until(io, [&] { return good.find<RoundStart>() != nullptr; }));
  for (int i = 0; i < 40; ++i) connect();  // A member does not give way.
  CHECK(run_until(io, [&] { return open() == 8; }));
  CHECK(good.lost.empty());
}

TEST_CASE("who begins a plain hello and stops keeps nobody from ending the job",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 1, 0);
  tcp::socket slow(io);
  slow.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(endpoint.port())});
  asio::write(slow, asio::buffer("{", 1));
  Node a(io, endpoint.port(), 0, 1);
  REQUIRE(run_until(io, [&] { return a.find<RoundStart>() != nullptr; }));
  a.client->send(WorkersSucceeded{0});
  REQUIRE(run_until(io, [&] { return a.find<Finish>() != nullptr; }));

  bool idle = false;
  endpoint.coordinator->wait_until_idle(10min, [&] { idle = true; });
  io.restart();
  while (io.poll() > 0) continue;
  CHECK_FALSE(idle);  // A member is waited for: the verdict may be on its way to it.
  a.client.reset();
  CHECK(run_until(io, [&] { return idle; }));
  slow.non_blocking(true);
  char byte = 0;
  asio::error_code error;
  slow.read_some(asio::buffer(&byte, 1), error);
  CHECK(error == asio::error::would_block);  // It did not take the end of this one.
}

TEST_CASE("15.5: who was not let in may not send without end", "[rendezvous][coordinator]") {
  asio::io_context io;
  Endpoint endpoint(io, 1, 0);
  tcp::socket socket(io);
  socket.connect({asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(endpoint.port())});
  socket.non_blocking(true);
  const std::string junk(4'096, ' ');
  std::size_t sent = 0;

  const bool closed = run_until(io, [&] {
    asio::error_code error;
    sent += socket.write_some(asio::buffer(junk), error);
    return error && error != asio::error::would_block;
  });

  CHECK(closed);
  CHECK(sent < 32u << 20);  // What the kernel took before it was closed counts, too.
}

TEST_CASE("something that is no coordinator is named as such", "[rendezvous][coordinator]") {
  asio::io_context io;
  tcp::acceptor acceptor(io, any_port);
  acceptor.async_accept([](const asio::error_code&, tcp::socket socket) {
    asio::error_code ignored;
    asio::write(socket, asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")), ignored);
  });

  Node node(io, acceptor.local_endpoint().port(), 0, 1);
  REQUIRE(run_until(io, [&] { return !node.lost.empty(); }));

  CHECK(node.lost.find("not a JSON object; is a ddprun of this job listening there?") !=
        std::string::npos);
}

namespace {

// A coordinator of one node beside its own, whose launcher answers every question with "all".
struct Looked {
  explicit Looked(asio::io_context& io_) : io(io_), acceptor(io_, any_port) {
    JobLimits limits;
    limits.run_id = "job";
    limits.round = {.nodes_min = 2, .nodes_max = 2, .join_timeout = 60s};
    limits.host_node_id = "n0";
    limits.master_addr = "127.0.0.1";
    limits.master_port = port();
    CoordinatorCallbacks callbacks{[](const RoundName&) {}};
    callbacks.on_query = [this](const Query& query,
                                const std::function<void(const std::string&)>& reply) {
      asked.push_back(query);
      if (answers) reply(answer);
    };
    coordinator = std::make_unique<Coordinator>(io_, limits, callbacks);
    accept();
  }
  void accept() {
    acceptor.async_accept([this](const asio::error_code& error, tcp::socket socket) {
      if (error) return;
      coordinator->adopt(std::move(socket), "");
      accept();
    });
  }
  std::uint16_t port() const { return acceptor.local_endpoint().port(); }

  QueryAnswer ask(const std::string& run_id) {
    std::optional<QueryAnswer> given;
    query_coordinator(io, "127.0.0.1", port(), {.number = 4, .run_id = run_id, .what = "snapshot"},
                      nullptr, ddprun::testing::patience(20s),
                      [&](const QueryAnswer& got) { given = got; });
    REQUIRE(run_until(io, [&] { return given.has_value(); }));
    return *given;
  }
  std::vector<NodeTold> ask_nodes(std::chrono::milliseconds limit) {
    std::optional<std::vector<NodeTold>> told;
    coordinator->ask_nodes({.what = "snapshot"}, limit,
                           [&](const std::vector<NodeTold>& nodes) { told = nodes; });
    CHECK_FALSE(told);  // Never from inside of the question.
    REQUIRE(run_until(io, [&] { return told.has_value(); }));
    return *told;
  }

  asio::io_context& io;
  tcp::acceptor acceptor;
  std::vector<Query> asked;
  bool answers = true;
  std::string answer = "all";
  std::unique_ptr<Coordinator> coordinator;
};

}  // namespace

TEST_CASE("17.2: who looks at the job is answered, and takes no part in it",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  Looked job(io);
  job.answer = std::string(100'000, 'x');
  const QueryAnswer answer = job.ask("job");
  REQUIRE(answer.text);
  CHECK(*answer.text == job.answer);
  REQUIRE(job.asked.size() == 1);
  CHECK(job.asked[0].what == "snapshot");

  const QueryAnswer other = job.ask("other");
  CHECK_FALSE(other.text);
  REQUIRE(other.refused);
  CHECK(other.refused->exit_status == exit_status::refused);
  CHECK(other.refused->reason.find("job\"") == std::string::npos);  // Its id is not told.
  CHECK(job.asked.size() == 1);

  job.answer = std::string(Coordinator::answer_bytes_max + 1, 'x');
  CHECK(job.ask("job").refused->reason == "the answer is too long to be sent");
  // Who waits for an answer that does not come does not keep the job from ending.
  job.answers = false;
  bool gone = false, idle = false;
  query_coordinator(io, "127.0.0.1", job.port(), {.run_id = "job", .what = "snapshot"}, nullptr,
                    ddprun::testing::patience(20s), [&](const QueryAnswer&) { gone = true; });
  REQUIRE(run_until(io, [&] { return job.asked.size() == 3; }));
  job.coordinator->wait_until_idle(60s, [&] { idle = true; });
  CHECK(run_until(io, [&] { return idle; }));
  CHECK_FALSE(gone);
  job.coordinator.reset();
  CHECK(run_until(io, [&] { return gone; }));
}

TEST_CASE("17.2: a coordinator asks the nodes that can tell, once, and waits for no dead one",
          "[rendezvous][coordinator]") {
  asio::io_context io;
  Looked job(io);
  CHECK(job.ask_nodes(60s).empty());
  Node own(io, job.port(), 0, 2);
  Node node(io, job.port(), 1, 2, "job", "127.0.0.1", 60s, /*tells=*/true);
  REQUIRE(run_until(io, [&] { return own.find<RoundStart>() && node.find<RoundStart>(); }));

  // It says nothing, and is waited for once.
  auto nodes = job.ask_nodes(50ms);
  REQUIRE(nodes.size() == 2);
  CHECK(nodes[0].is_own);
  CHECK(nodes[1].group_rank == 1);
  CHECK(nodes[1].tells);
  CHECK_FALSE(nodes[1].text);
  CHECK(own.find<Query>() == nullptr);
  nodes = job.ask_nodes(60s);
  CHECK_FALSE(nodes[1].text);

  // Once it speaks again it is.
  int answered = 0;
  const auto answer = [&] {
    const auto* query = node.find<Query>();
    if (query == nullptr) return;
    node.client->send(Told{.number = query->number, .text = "{}"});
    node.inbox.clear();
    ++answered;
  };
  std::optional<std::vector<NodeTold>> told;
  for (int i = 0; i < 3 && !(told && (*told)[1].text); ++i) {
    told.reset();
    const int before = answered;
    job.coordinator->ask_nodes({.what = "snapshot"}, 60s,
                               [&](const std::vector<NodeTold>& got) { told = got; });
    REQUIRE(run_until(io, [&] {
      answer();
      return told.has_value() && answered > before;
    }));
  }
  CHECK((*told)[1].text == "{}");
}
