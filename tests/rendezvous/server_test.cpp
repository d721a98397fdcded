// The server over real loopback sockets: what one client does to others, and attempts.
#include "rendezvous/server.h"

#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/host/interface_addresses.h"
#include "rendezvous/store/accept_pace.h"
#include "rendezvous/store/access_list.h"
#include "rendezvous/store_client.h"
#include "rendezvous/wire/store_attempt.h"
#include "tests/rendezvous/store/store_server_fixture.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::rendezvous;
using namespace ddprun::rendezvous::testing;
using std::string;
using Client = RawClient;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// What the first control connection brought.
string handed_over(ServerFixture& fixture) {
  auto received = fixture.control.get_future();
  REQUIRE(received.wait_for(ddprun::testing::patience(10s)) == std::future_status::ready);
  return received.get();
}

// What the server says first, as an event to wait for.
class FirstLine : public spdlog::sinks::base_sink<std::mutex> {
 private:
  std::promise<string> line_;
  bool heard_ = false;

 public:
  std::future<string> said = line_.get_future();

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!std::exchange(heard_, true))
      line_.set_value(string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
};

// While it lives, this process may open one more descriptor.
class LoweredDescriptors {
 public:
  LoweredDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lowered = before_;
    const int next = ::dup(0);
    ::close(next);
    lowered.rlim_cur = static_cast<rlim_t>(next) + 1;
    setrlimit(RLIMIT_NOFILE, &lowered);
  }
  ~LoweredDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  LoweredDescriptors(const LoweredDescriptors&) = delete;

 private:
  rlimit before_{};
};

// An IPv4 address of this machine that is not loopback; "" if there is none.
string own_address() {
  for (const InterfaceAddress& one : usable_addresses(interface_addresses())) {
    if (!one.loopback && one.address.find(':') == string::npos) return one.address;
  }
  return "";
}

}  // namespace

TEST_CASE("clients see each other's keys", "[server]") {
  ServerFixture f;
  Client a(f), b(f);
  a.send(set("k", "value"));
  a.sync();
  CHECK(b.ask(get("k"), 13) == text("value"));
}

TEST_CASE("a handshake split into single bytes is taken", "[server]") {
  ServerFixture f;
  Client client(f, "");
  for (const char c : validate + op(StoreOp::Ping) + "ping") {
    client.send(string(1, c));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // So that they are not joined.
  }
  CHECK(client.read(4) == "ping");
}

TEST_CASE("a client that stops inside a command stops nobody else", "[server]") {
  ServerFixture f;
  Client half(f), other(f);
  const string command = set("k", "value");
  half.send(command.substr(0, 12));
  other.sync();
  half.send(command.substr(12));
  half.sync();
  CHECK(other.ask(get("k"), 13) == text("value"));
}

TEST_CASE("what a client sets just before it exits is kept", "[server]") {
  ServerFixture f;
  for (int i = 0; i < 50; ++i) {
    Client client(f, "");
    client.send(validate + set(string("k").append(std::to_string(i)), "v"));
  }
  Client reader(f);
  for (int i = 0; i < 50; ++i) {
    const string key = string("k").append(std::to_string(i));
    REQUIRE(reader.ask(wait(key), 1) == stop);
    CHECK(reader.ask(get(key), 9) == text("v"));
  }
}

TEST_CASE("a set wakes the clients that wait for its key", "[server]") {
  ServerFixture f;
  std::vector<Client> waiting;
  for (int i = 0; i < 200; ++i) {
    waiting.emplace_back(f).send(wait("k"));
  }
  for (const Client& client : waiting) client.send("");
  Client setter(f);
  setter.send(set("k", "v"));
  for (const Client& client : waiting) REQUIRE(client.read(1) == stop);
}

TEST_CASE("a client that disconnects while waiting leaves the others alone", "[server]") {
  ServerFixture f;
  Client gone(f), stays(f), setter(f);
  gone.send(wait("k"));
  stays.send(wait("k"));
  gone.close();
  setter.send(set("k", "v"));
  CHECK(stays.read(1) == stop);
}

TEST_CASE("a wait that was cancelled in time is answered once", "[server]") {
  ServerFixture f;
  Client client(f), setter(f);
  client.send(wait("k"));
  CHECK(client.ask(op(StoreOp::CancelWait), 1) == canceled);
  setter.send(set("k", "v"));
  setter.sync();
  CHECK(client.ask(op(StoreOp::Ping) + "next", 4) == "next");
}

TEST_CASE("a command that comes behind a wait gets its own answer first", "[server]") {
  ServerFixture f;
  Client client(f), setter(f);
  for (int i = 0; i < 200; ++i) {  // The release and the cancellation cross.
    const string key = string("k").append(std::to_string(i));
    client.send(wait(key));
    setter.send(set(key, "v"));
    client.send(op(StoreOp::CancelWait));
    string answer = client.read(1);
    if (answer == stop) answer += client.read(1);
    REQUIRE((answer == canceled || answer == stop + canceled));
  }
}

TEST_CASE("an old client's two connections are served, the silent one included", "[server]") {
  ServerFixture f;
  Client silent(f, ""), old(f, "");
  old.send(string("\x03") + text("init/") + u64(1));
  CHECK(old.read(8) == u64(1));
  CHECK(old.ask(string("\x08") + text("init/"), 8) == u64(1));  // After the pause: a DELETE_KEY.
  CHECK(old.ask(string("\x08") + text("init/"), 8) == u64(0));  // From now on at once.
  silent.send("\x06");
  CHECK(silent.read(8) == u64(0));
}

TEST_CASE("junk closes the connection that sent it, and no other", "[server]") {
  ServerFixture f;
  Client good(f);
  for (const string& junk : {string("\x17\x03\x01\x02\x00\x01"), string("GET / HTTP/1.1\r\n\r\n"),
                             string("SSH-2.0-x\r\n"), string("\0\1\2\3\4\5\6\7\x8", 9),
                             validate + "\x13", validate + validate}) {
    Client client(f, junk);
    CHECK(client.closed());
  }
  good.sync();
}

TEST_CASE("answers due before a bad command are sent before the close", "[server]") {
  ServerFixture f;
  Client client(f);
  CHECK(client.ask(op(StoreOp::Ping) + "ping" + "\x7f", 5) == "ping");
}

TEST_CASE("add on text closes the connection", "[server]") {
  ServerFixture f;
  Client client(f);
  client.send(set("k", "text") + op(StoreOp::Add) + text("k") + u64(1));
  CHECK(client.closed());
}

TEST_CASE("a new attempt drops keys, waits and connections, and the port stays open", "[server]") {
  ServerFixture f;
  Client old(f), waiting(f), silent(f, "");
  old.send(set("k", "v"));
  old.sync();
  waiting.send(wait("never"));
  waiting.send("");

  f.run([&] { f.server->start_attempt(); });

  CHECK(old.closed());
  CHECK(waiting.closed());
  Client fresh(f);
  CHECK(fresh.ask(op(StoreOp::NumKeys), 8) == u64(0));
  silent.send(validate + set("k", "late"));  // Connected in the attempt before.
  CHECK(silent.closed());
  CHECK(fresh.ask(op(StoreOp::NumKeys), 8) == u64(0));
}

TEST_CASE("bytes in flight when an attempt begins change nothing", "[server]") {
  ServerFixture f;
  std::vector<Client> late;
  f.run([&] {  // While the server's thread is here it reads and accepts nothing.
    for (int i = 0; i < 20; ++i) late.emplace_back(f).send(set("k", "late"));
    f.server->start_attempt();
  });
  for (const Client& client : late) CHECK(client.closed());
  Client fresh(f);
  CHECK(fresh.ask(op(StoreOp::NumKeys), 8) == u64(0));
}

TEST_CASE("a reader that never reads is closed at the limit", "[server]") {
  ServerOptions options;
  options.output_bytes_max = 8u << 20;
  ServerFixture f(options);
  Client greedy(f), other(f);
  other.send(set("k", string(1u << 20, 'x')));
  other.sync();
  string requests;
  for (int i = 0; i < 64; ++i) requests += get("k");
  greedy.send(requests);

  other.sync();
  CHECK(greedy.read(64u << 20).size() < 64u << 20);  // Less than it asked for, then the end.
  other.sync();
}

TEST_CASE("a slow reader gets everything below the limit", "[server]") {
  ServerFixture f;
  Client slow(f), other(f);
  string value(3u << 20, 'x');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 + i / 4096);
  other.send(set("k", value));
  other.sync();
  string requests;
  for (int i = 0; i < 20; ++i) requests += get("k") + op(StoreOp::Ping) + "ping";
  slow.send(requests);
  other.sync();
  for (int i = 0; i < 20; ++i) {
    REQUIRE(slow.read(8 + value.size()) == text(value));
    REQUIRE(slow.read(4) == "ping");
  }
}

TEST_CASE("a large value that many slow clients fetch is charged once", "[server]") {
  ServerOptions options;
  options.memory_bytes_max = 16u << 20;
  ServerFixture f(options);
  Client other(f);
  const string value(3u << 20, 'x');
  other.send(set("k", value));
  other.sync();
  std::vector<Client> slow;
  for (int i = 0; i < 10; ++i) slow.emplace_back(f).send(get("k") + get("k") + get("k"));
  other.sync();
  for (const Client& client : slow) {
    for (int i = 0; i < 3; ++i) REQUIRE(client.read(8 + value.size()) == text(value));
  }
}

TEST_CASE("memory that clients hold is bounded", "[server]") {
  ServerOptions options;
  options.memory_bytes_max = 16u << 20;
  ServerFixture f(options);
  Client good(f);
  std::vector<Client> clients;
  const string half = op(StoreOp::Set) + text("k") + u64(20u << 20) + string(6u << 20, 'x');
  for (int i = 0; i < 4; ++i) clients.emplace_back(f).send(half);
  good.sync();
  std::vector<pollfd> entries;
  for (const Client& client : clients) entries.push_back({client.fd, POLLIN, 0});
  const auto limit = ddprun::testing::patience(10s).count();
  int closed = ::poll(entries.data(), entries.size(), static_cast<int>(limit));
  CHECK(closed >= 1);
  good.sync();
  closed = ::poll(entries.data(), entries.size(), 0);
  CHECK(closed < 4);
  good.send(set("k", "v"));
  CHECK(good.ask(get("k"), 9) == text("v"));
}

TEST_CASE("TLS is handed over as a control connection is", "[server]") {
  ServerFixture f;
  Client agent(f, "\x16\x03\x01 and so on");
  CHECK(handed_over(f) == "\x16\x03\x01 and so on");
}

TEST_CASE("a first byte '{' hands the connection and its bytes over", "[server]") {
  ServerFixture f;
  Client agent(f, "{\"type\":\"join\"}\n");
  CHECK(handed_over(f) == "{\"type\":\"join\"}\n");
  f.run([&] {
    f.server->start_attempt();  // Not the store's any more.
    asio::write(f.controls.at(0), asio::buffer("welcome", 7));
  });
  CHECK(agent.read(7) == "welcome");
}

TEST_CASE("an agent that speaks only after an attempt began is let in", "[server]") {
  ServerFixture f;
  Client agent(f, "");
  f.run([&] { f.server->start_attempt(); });
  agent.send("{}\n");
  CHECK(handed_over(f) == "{}\n");
}

TEST_CASE("connections over the limit are closed, and room is used again", "[server]") {
  ServerOptions options;
  options.connections_max = 2;
  ServerFixture f(options);
  auto a = std::make_unique<Client>(f);
  Client b(f);
  a->sync();
  b.sync();
  CHECK(Client(f).closed());
  a->close();
  bool served = false;  // Once the server has seen the close.
  for (const auto limit = Clock::now() + ddprun::testing::patience(10s);
       !served && Clock::now() < limit;) {
    Client again(f);
    served = again.ask(op(StoreOp::Ping) + "ping", 4) == "ping";
  }
  CHECK(served);
}

TEST_CASE("who is refused for want of connections is told of with the way out", "[server]") {
  ServerOptions options;
  options.connections_max = 1;
  ServerFixture f(options);
  const auto log = std::make_shared<FirstLine>();
  std::shared_ptr<spdlog::logger> usual;
  f.run([&] {
    usual = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", log));
  });

  Client served(f);
  served.sync();
  CHECK(Client(f).closed());

  f.run([&] { spdlog::set_default_logger(usual); });  // It has been said by now.
  REQUIRE(log->said.wait_for(0s) == std::future_status::ready);
  CHECK(log->said.get().find("1 connections are open, of connections_max = 1 (raise the limit of "
                             "open files, ulimit -n)") != string::npos);
}

TEST_CASE("15.5: silent connections of strangers are few, and do not last", "[server]") {
  AccessList nobody;  // Loopback may, of course; other addresses of this machine may not.
  ServerOptions options;
  options.bind_address = "";
  options.store_access = &nobody;
  options.strangers = {.total_max = 64, .per_host_max = 4, .time_max = 500ms};
  ServerFixture f(options);
  const string own = own_address();
  if (own.empty()) DDPRUN_SKIP("this machine has no address but loopback");
  std::vector<Client> silent;
  for (int i = 0; i < 20; ++i) silent.emplace_back(f.port(), "", own.c_str(), own.c_str());
  for (int i = 0; i < 16; ++i) CHECK(silent.at(i).closed());
  Client worker(f);
  worker.sync();                                               // Nobody was pushed out for them.
  for (int i = 16; i < 20; ++i) CHECK(silent.at(i).closed());  // In time.

  Client silent_client(f, "");  // May use the store, and take its time.
  worker.sync();
  CHECK_FALSE(silent_client.readable(1'000));
}

TEST_CASE("15.6: a crowd of strangers is taken in batches, and members get in beside it",
          "[server]") {
  AccessList nobody;
  ServerOptions options;
  options.bind_address = "";
  options.store_access = &nobody;
  options.strangers = {.total_max = 64, .per_host_max = 4, .time_max = 60s};
  ServerFixture f(options);
  const string own = own_address();
  if (own.empty()) DDPRUN_SKIP("this machine has no address but loopback");
  std::vector<Client> silent;
  for (int i = 0; i < 4 * AcceptPace::at_once_max; ++i) {
    silent.emplace_back(f.port(), "", own.c_str(), own.c_str());
    if (i % 16 != 15) continue;
    Client worker(f);  // Between two batches it waits for the next one, and the port is not lost.
    worker.sync();
    // An attempt that begins meanwhile takes those who wait, too.
    if (i % 64 == 63) f.run([&] { f.server->start_attempt(std::to_string(i)); });
  }
  Client(f).sync();
  // Reset: of a usual end the kernel would keep a minute's memory.
  char byte = 0;
  const auto limit = ddprun::testing::patience(10s).count();
  REQUIRE(silent.at(0).readable(static_cast<int>(limit)));
  CHECK(::recv(silent.at(0).fd, &byte, 1, 0) == -1);
  CHECK(errno == ECONNRESET);
}

TEST_CASE("15.3: who is a member no more loses its open connections", "[server]") {
  const string own = own_address();
  if (own.empty()) DDPRUN_SKIP("this machine has no address but loopback");
  AccessList members;
  members.set_members({own});
  ServerOptions options;
  options.bind_address = "";
  options.store_access = &members;
  ServerFixture f(options);
  Client gone(f.port(), validate, own.c_str(), own.c_str()), stays(f);
  gone.sync();
  stays.sync();

  f.run([&] {
    members.set_members({});
    f.server->recheck_access();
  });

  CHECK(gone.closed());
  CHECK(Client(f.port(), validate, own.c_str(), own.c_str()).closed());
  stays.sync();
}

TEST_CASE("15.3: another user of this machine is turned away, whatever it speaks", "[server]") {
  if (::geteuid() != 0) DDPRUN_SKIP("to become another user one must be root");
  ServerOptions options;
  options.own_users_only = true;
  ServerFixture f(options);
  Client own(f);
  own.sync();
  for (const string& first : {validate + op(StoreOp::Ping) + "ping", string("{}\n")}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setuid(54'321) != 0) ::_exit(2);
      const Client stranger(f.port(), first);
      ::_exit(stranger.closed() ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  own.sync();
}

TEST_CASE("15.3: with --store-auth nobody is served who does not prove the key", "[server]") {
  ServerOptions options;
  std::vector<string> statements;
  options.proves = [&](std::string_view statement, std::string_view proof) {
    statements.emplace_back(statement);
    return proof == "right " + string(statement);
  };
  ServerFixture f(options);
  const auto with = [&](const string& word) {
    StoreClientOptions client{.timeout = ddprun::testing::patience(10s), .reconnect_timeout = 0s};
    client.prove = [word](std::string_view statement) { return word + " " + string(statement); };
    return client;
  };
  StoreClient own("127.0.0.1", f.port(), with("right"));
  own.set("k", "v");
  CHECK(own.get("k") == "v");
  StoreClient second("127.0.0.1", f.port(), with("right"));
  CHECK(second.get("k") == "v");
  REQUIRE(statements.size() == 2);
  CHECK(statements[0] != statements[1]);  // What was overheard is no use.

  auto wrong = with("wrong");
  wrong.timeout = 100ms;
  CHECK_THROWS_AS(StoreClient("127.0.0.1", f.port(), wrong), StoreError);
  const string challenge = op(StoreOp::CompareSet) + text(challenge_key) + text("") + text("");
  const string guess = op(StoreOp::CompareSet) + text(proof_key) + text("") + text("right ");
  for (const string& request :
       {set("k", "x"), get("k"), op(StoreOp::NumKeys), guess, challenge + guess, wait("never")}) {
    const Client stranger(f, validate + request);
    stranger.read(64);
    CHECK(stranger.closed());
  }
  CHECK(own.get("k") == "v");
}

TEST_CASE("15.3: connections that prove nothing take no place of those that prove the key",
          "[server]") {
  ServerOptions options;
  options.proves = [](std::string_view, std::string_view) { return true; };
  options.connections_max = 8;
  ServerFixture f(options);
  std::vector<Client> silent;
  for (int i = 0; i < 20; ++i) silent.emplace_back(f, i % 2 == 0 ? "" : validate);
  StoreClientOptions with_key{.timeout = ddprun::testing::patience(10s)};
  with_key.prove = [](std::string_view) { return string("proof"); };
  std::vector<StoreClient> own;
  for (int i = 0; i < 4; ++i) own.emplace_back("127.0.0.1", f.port(), with_key);
  CHECK(own.front().num_keys() == 0);
  CHECK(silent.front().closed());
}

TEST_CASE("a client with a key costs a store that asks for no proof nothing", "[server]") {
  ServerFixture f;
  StoreClientOptions options{.timeout = ddprun::testing::patience(10s)};
  options.prove = [](std::string_view) -> string { throw StoreError("nobody asked"); };
  StoreClient client("127.0.0.1", f.port(), options);
  CHECK(client.num_keys() == 0);
}

TEST_CASE("when descriptors run out, accepting goes on as soon as there are some", "[server]") {
  ServerFixture f;
  Client first(f);
  first.sync();
  const auto log = std::make_shared<FirstLine>();
  std::shared_ptr<spdlog::logger> usual;
  f.run([&] {
    usual = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", log));
  });
  std::optional<LoweredDescriptors> one_left(std::in_place);  // The client's own.
  Client starved(f);
  starved.send(op(StoreOp::Ping) + "ping");
  const bool noticed =
      log->said.wait_for(ddprun::testing::patience(10s)) == std::future_status::ready;
  one_left.reset();

  REQUIRE(noticed);
  CHECK(log->said.get().find("cannot accept connections") != string::npos);
  CHECK(starved.read(4) == "ping");
  f.run([&] { spdlog::set_default_logger(usual); });
  first.sync();
}

TEST_CASE("a port in use is a message that names it", "[server]") {
  ServerFixture f;
  ServerOptions options;
  options.port = f.server->port();
  asio::io_context io;
  const string expected =
      string("cannot listen on 127.0.0.1, port ") + std::to_string(options.port);
  try {
    Server second(io, options, nullptr);
    FAIL("two servers on one port");
  } catch (const std::system_error& error) {
    CHECK(string(error.what()).find(expected) != string::npos);
    CHECK(error.code() == std::errc::address_in_use);
  }
  options.bind_address = "no.address";
  CHECK_THROWS_AS(Server(io, options, nullptr), std::system_error);
}

TEST_CASE("a server on every interface serves IPv4", "[server]") {
  ServerOptions options;
  options.bind_address = "";
  ServerFixture f(options);
  Client(f).sync();
}

TEST_CASE("a closed server ends its event loop", "[server]") {
  asio::io_context io;
  Server server(io, {}, nullptr);
  asio::post(io, [&] { server.close(); });
  CHECK(io.run() > 0);
}

TEST_CASE("a command that is never finished costs its sender the connection", "[server]") {
  ServerFixture fixture({.command_time_max = std::chrono::milliseconds(200)});
  Client other(fixture), slow(fixture);
  slow.send(set("key", "value").substr(0, 12));

  CHECK(slow.read(1).empty());  // Ends with the connection, not with read()'s own limit.
  CHECK(slow.closed());
  other.send(set("a", "1") + get("a"));
  CHECK(other.read(9) == u64(1) + "1");
}
