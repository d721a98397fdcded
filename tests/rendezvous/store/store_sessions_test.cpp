// The connections of the store without a thread or a clock: what must not depend on when bytes
// come.
#include "rendezvous/store/store_sessions.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "rendezvous/wire/store_attempt.h"
#include "tests/rendezvous/store/store_server_fixture.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace ddprun::rendezvous::testing;
using std::string;

namespace {

struct Fixture {
  explicit Fixture(const ServerOptions& options = {})
      : sessions(options, epoll.get(),
                 {[](const UniqueFd&, const string&) {},
                  [this](int, const string& reason) { refused.push_back(reason); }}) {}

  // One end of a connection; the other is the store's.
  UniqueFd connect() {
    std::array<int, 2> ends{-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
    sessions.add(UniqueFd(ends[1]), {}, now);
    return UniqueFd(ends[0]);
  }
  // Sends, lets the store do all that it can do now, and returns what it answers.
  string ask(const UniqueFd& client, const string& bytes) {
    REQUIRE(::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
    serve();
    return read(client);
  }
  static string read(const UniqueFd& client) {
    std::array<char, 4'096> buffer;
    string got;
    for (ssize_t size; (size = ::recv(client.get(), buffer.data(), buffer.size(), 0)) > 0;) {
      got.append(buffer.data(), static_cast<std::size_t>(size));
    }
    return got;
  }
  void serve() {
    std::array<epoll_event, 8> events;
    for (int ready; (ready = epoll_wait(epoll.get(), events.data(), events.size(), 0)) > 0;) {
      for (int i = 0; i < ready; ++i) sessions.on_event(events[i].data.u64, events[i].events, now);
    }
  }

  UniqueFd epoll{epoll_create1(EPOLL_CLOEXEC)};
  StoreSessions::Clock::time_point now{};
  std::vector<string> refused;  // Why connections were closed.
  StoreSessions sessions;
};

// --store-auth, where "right" is the proof of every challenge.
ServerOptions asking_for_proof() {
  ServerOptions options;
  options.proves = [](std::string_view, std::string_view proof) { return proof == "right"; };
  return options;
}
const string ask_challenge = op(StoreOp::CompareSet) + text(challenge_key) + text("") + text("");
const string prove = op(StoreOp::CompareSet) + text(proof_key) + text("") + text("right");

// As torch 1.13, 2.0 and 2.1 send them.
const string legacy_wait = string("\x05") + u64(1) + text("z");
const string legacy_num_keys = "\x06";
const string legacy_8 = string("\x08") + text("z");  // DELETE_KEY, or the start of an APPEND.
const string legacy_cancel_wait = "\x0b";

}  // namespace

TEST_CASE("opcode 8 of an old client is answered when the peer has been silent", "[sessions]") {
  Fixture f;
  const UniqueFd old = f.connect();
  CHECK(f.ask(old, legacy_num_keys) == u64(0));
  CHECK(f.ask(old, legacy_8).empty());
  REQUIRE(f.sessions.deadline() == f.now + StoreSessions::ambiguous_pause);

  f.sessions.on_deadline(f.now + StoreSessions::ambiguous_pause);

  CHECK(Fixture::read(old) == u64(0));
  CHECK(f.ask(old, legacy_8) == u64(0));  // From now on at once.
}

TEST_CASE("a torch 1.13 client whose wait timed out has its delete_key answered at once",
          "[sessions]") {
  Fixture f;
  for (const string& between : {string(), legacy_num_keys}) {
    const UniqueFd old = f.connect();
    CHECK(f.ask(old, legacy_wait).empty());
    if (!between.empty()) CHECK(f.ask(old, between) == u64(0));
    CHECK(f.ask(old, legacy_8) == u64(0));
  }
}

TEST_CASE("a torch 2.1 client that cancelled its wait may still append", "[sessions]") {
  Fixture f;
  const UniqueFd old = f.connect();
  CHECK(f.ask(old, legacy_wait).empty());
  CHECK(f.ask(old, legacy_cancel_wait) == canceled);
  CHECK(f.ask(old, legacy_8).empty());
  f.sessions.on_deadline(f.now + StoreSessions::ambiguous_pause);  // CANCEL_WAIT tells.
  CHECK(f.ask(old, text("more") + legacy_num_keys) == u64(1));
  CHECK(f.ask(f.connect(), validate + get("z")) == text("more"));
}

TEST_CASE("a torch 1.13 client whose wait timed out gets no answer to it once it sends an opcode",
          "[sessions]") {
  Fixture f;
  const UniqueFd old = f.connect(), other = f.connect();
  const string add = string("\x03") + text("n") + u64(5);
  // By itself, as that client sends it, or in one read with the wait.
  const bool alone = GENERATE(true, false);
  CHECK(f.ask(old, alone ? legacy_wait : legacy_wait + add.substr(0, 1)).empty());
  if (alone) CHECK(f.ask(old, add.substr(0, 1)).empty());

  f.ask(other, validate + set("z", "late"));

  CHECK(f.ask(old, add.substr(1)) == u64(5));
}

TEST_CASE("a client that a push has woken and that ends has the next one woken", "[sessions]") {
  Fixture f;
  UniqueFd first = f.connect();
  const UniqueFd second = f.connect(), other = f.connect();
  const string push = op(StoreOp::QueuePush) + text("q") + text("item");
  f.ask(first, validate + wait("q"));
  f.ask(second, validate + wait("q"));
  f.ask(other, validate + push);
  REQUIRE(Fixture::read(first) == stop);
  REQUIRE(Fixture::read(second).empty());

  first.reset();
  f.serve();

  CHECK(Fixture::read(second) == stop);
}

TEST_CASE("a connection that is reset in any state gives its memory back", "[sessions]") {
  Fixture f;
  const string half = set("k", string(9'000, 'x')).substr(0, 5'000);
  for (const string& state : {validate, validate + half, validate + wait("k"), legacy_wait,
                              legacy_8, validate.substr(0, 3)}) {
    UniqueFd client = f.connect();
    f.ask(client, state);
    client.reset();
    f.serve();
    CHECK(f.sessions.memory_bytes() == 0);
    CHECK(f.sessions.size() == 0);
  }
}

TEST_CASE("a client that floods the store has a bounded part of each turn", "[sessions]") {
  Fixture f;
  const UniqueFd flooder = f.connect();
  const UniqueFd other = f.connect();
  f.ask(flooder, validate);
  f.ask(other, validate);
  const string one = op(StoreOp::Append) + text("k") + text("x");
  string flood;
  while (flood.size() < 2 * StoreSessions::input_bytes_max) flood += one;
  std::size_t sent = 0;  // What the socket takes.
  for (ssize_t size = 1; size > 0 && sent < flood.size();) {
    size = ::send(flooder.get(), &flood[sent], flood.size() - sent, MSG_NOSIGNAL);
    if (size > 0) sent += static_cast<std::size_t>(size);
  }
  REQUIRE(sent > StoreSessions::input_bytes_max + one.size());

  std::array<epoll_event, 2> events;
  REQUIRE(epoll_wait(f.epoll.get(), events.data(), 2, 0) == 1);
  const auto flooder_token = events[0].data.u64;
  f.sessions.on_event(flooder_token, events[0].events, f.now);
  const string question = get("k");
  REQUIRE(::send(other.get(), question.data(), question.size(), MSG_NOSIGNAL) > 0);
  REQUIRE(epoll_wait(f.epoll.get(), events.data(), 2, 0) == 2);
  const auto& event = events[events[0].data.u64 == flooder_token ? 1 : 0];
  f.sessions.on_event(event.data.u64, event.events, f.now);

  const std::size_t appended = Fixture::read(other).size() - sizeof(std::uint64_t);
  CHECK(appended > 0);
  CHECK(appended * one.size() <= StoreSessions::input_bytes_max);
}

TEST_CASE("15.3: who has not proved the key is refused what a handshake has not, when announced",
          "[sessions]") {
  Fixture f(asking_for_proof());
  const string many = op(StoreOp::MultiSet) + u64(100'000);
  const string long_key = op(StoreOp::Get) + u64(2'000);
  const string large = op(StoreOp::CompareSet) + text(proof_key) + text("") + u64(2'000);
  for (const string& begin : {many, long_key, large}) {
    const UniqueFd stranger = f.connect();
    f.ask(stranger, validate + op(StoreOp::Ping) + "ping");
    f.ask(stranger, begin);

    CHECK(f.sessions.size() == 0);
    CHECK(f.sessions.memory_bytes() == 0);
  }
  REQUIRE(f.refused.size() == 3);
  CHECK(f.refused[0] ==
        "MULTI_SET: a list of 100000, over keys_per_request_max = 16, before it has proved the "
        "job's key (--store-auth)");

  const UniqueFd own = f.connect();
  f.ask(own, validate + ask_challenge);
  CHECK(f.ask(own, prove + set("k", string(5'000, 'x'))) == text(""));
  CHECK(f.ask(own, get("k")).size() == 8 + 5'000);
}

TEST_CASE("15.3: who has not proved the key and reads no replies costs little", "[sessions]") {
  Fixture f(asking_for_proof());
  const UniqueFd deaf = f.connect();
  const string ping = op(StoreOp::Ping) + "ping";
  string flood;
  while (flood.size() + ping.size() <= StoreSessions::input_bytes_max) flood += ping;
  ::send(deaf.get(), validate.data(), validate.size(), MSG_NOSIGNAL);
  std::size_t most = 0;
  for (int turn = 0; turn < 1'000 && f.refused.empty(); ++turn) {
    ::send(deaf.get(), flood.data(), flood.size(), MSG_NOSIGNAL);
    f.serve();
    most = std::max(most, f.sessions.memory_bytes());
  }
  REQUIRE(f.refused.size() == 1);
  CHECK(f.refused[0].find("it does not read its replies") == 0);
  CHECK(most <= ServerOptions{}.unproved_bytes_max);
}

TEST_CASE("15.3: who does not prove the key does not stay, and gives way to others", "[sessions]") {
  ServerOptions options = asking_for_proof();
  options.connections_max = 16;
  Fixture f(options);
  const UniqueFd own = f.connect();
  f.ask(own, validate + ask_challenge);
  f.ask(own, prove);
  CHECK(f.sessions.unproved() == 0);

  const UniqueFd first = f.connect();
  f.ask(first, validate);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(f.connect());
  CHECK(f.sessions.unproved() == 4);
  REQUIRE(f.refused.size() == 1);
  CHECK(f.refused[0] == "it has not proved the job's key (--store-auth), and others came");

  const auto due = f.now + options.strangers.time_max;
  REQUIRE(f.sessions.deadline() == due);
  f.now += std::chrono::seconds(9);
  f.ask(silent[0], validate);  // It speaks, and wins no time by that.
  CHECK(f.sessions.deadline() == due);
  f.sessions.on_deadline(due);
  CHECK(f.sessions.size() == 1);
  CHECK(f.refused.back() == "it has not proved the job's key (--store-auth) within 10 s");
  CHECK(f.ask(own, set("k", "v") + get("k")) == text("v"));
}
