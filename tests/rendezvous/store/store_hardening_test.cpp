// Peers that are broken, hostile or gone: each costs itself, and the job's clients go on. What the
// parser refuses is in tests/rendezvous/wire/wire_test.cpp; slow readers, junk and spent
// descriptors are in server_test.cpp.
#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "rendezvous/store/store_socket.h"
#include "tests/rendezvous/store/store_server_fixture.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace ddprun::rendezvous::testing;
using std::string;

namespace {

// A client of the job, which must be served whatever the others do.
struct Job {
  explicit Job(const ServerFixture& f) : writer(f), reader(f) {}
  void goes_on() {
    const string key = string("job").append(std::to_string(++turn));
    reader.send(wait(key));
    writer.send(set(key, key));
    REQUIRE(reader.read(1) == stop);
    REQUIRE(reader.ask(get(key), 8 + key.size()) == text(key));
  }
  RawClient writer, reader;
  int turn = 0;
};

int option_of(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  getsockopt(fd, level, name, &value, &size);
  return value;
}

}  // namespace

TEST_CASE("a port scan of a thousand connections leaves nothing behind", "[hardening]") {
  ServerOptions options;
  options.connections_max = 64;  // Far fewer than come, so that each must give its place back.
  ServerFixture f(options);
  Job job(f);
  for (int i = 0; i < 1'000; ++i) {
    RawClient scanner(f, "");
    // Until the server has seen the end of this one, the next hundred may be over the limit.
    if (i % 50 == 0) job.goes_on();
  }
  job.goes_on();
  for (bool served = false; !served;) {
    RawClient late(f);
    served = late.ask(op(StoreOp::Ping) + "ping", 4) == "ping";
  }
}

TEST_CASE("a storm of resets in every state disturbs nobody", "[hardening]") {
  ServerFixture f;
  Job job(f);
  RawClient waits(f);
  job.writer.send(set("large", string(1u << 20, 'x')));
  const string half = set("never", string(100'000, 'x')).substr(0, 50'000);
  string fetch;
  for (int i = 0; i < 8; ++i) fetch += get("large");
  for (int i = 0; i < 300; ++i) {
    const std::vector<string> states{"",
                                     validate,
                                     validate + half,
                                     validate + wait("k"),
                                     validate + fetch,
                                     string("\x05") + u64(1) + text("k"),
                                     string("\x08") + text("k")};
    RawClient client(f, states[static_cast<std::size_t>(i) % states.size()]);
    if (i % 3 == 0) job.goes_on();
    client.reset();
  }
  waits.send(wait("k"));
  job.goes_on();
  job.writer.send(set("k", "v"));
  CHECK(waits.read(1) == stop);
  CHECK(job.reader.ask(op(StoreOp::Check) + u64(1) + text("never"), 1) == "\1");
}

TEST_CASE("half a command that never ends costs nobody else a moment", "[hardening]") {
  ServerFixture f;
  Job job(f);
  const string command = set("slow", "value");
  std::vector<RawClient> slow;
  for (std::size_t i = 1; i < command.size(); ++i) {
    slow.emplace_back(f).send(command.substr(0, i));
    job.goes_on();
  }
  // Byte by byte, in turns with the job: a command has no deadline.
  RawClient& last = slow.front();
  for (std::size_t i = 1; i < command.size(); ++i) {
    last.send(command.substr(i, 1));
    if (i % 8 == 0) job.goes_on();
  }
  last.sync();
  CHECK(job.reader.ask(get("slow"), 13) == text("value"));
}

TEST_CASE("a client stopped in the middle of a command goes on when it is continued",
          "[hardening]") {
  ServerFixture f;
  Job job(f);
  const string command = validate + set("stopped", string(3'000, 'x'));
  RawClient client(f, "");
  const pid_t child = ::fork();
  if (child == 0) {  // Only system calls: the parent has threads.
    const bool half = ::send(client.fd, command.data(), 1'000, MSG_NOSIGNAL) == 1'000;
    ::raise(SIGSTOP);
    const ssize_t rest = static_cast<ssize_t>(command.size()) - 1'000;
    const bool whole = ::send(client.fd, command.data() + 1'000, static_cast<std::size_t>(rest),
                              MSG_NOSIGNAL) == rest;
    ::_exit(half && whole ? 0 : 1);
  }
  REQUIRE(child > 0);
  client.close();  // The child's copy is the connection now.
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  REQUIRE(WIFSTOPPED(status));
  for (int i = 0; i < 20; ++i) job.goes_on();
  CHECK(job.reader.ask(op(StoreOp::Check) + u64(1) + text("stopped"), 1) == "\1");

  ::kill(child, SIGCONT);
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
  REQUIRE(job.reader.ask(wait("stopped"), 1) == stop);
  CHECK(job.reader.ask(get("stopped"), 3'008) == text(string(3'000, 'x')));
}

TEST_CASE("the largest key, list and value are taken, and one more closes", "[hardening]") {
  ServerFixture f;
  Job job(f);
  const ServerOptions defaults;
  const string key(defaults.key_bytes_max, 'k');
  RawClient client(f);
  client.send(set(key, "v"));
  CHECK(client.ask(get(key), 9) == text("v"));

  string keys;
  for (std::size_t i = 0; i < defaults.keys_per_request_max; ++i) keys += text(key.substr(0, 4));
  const string check = op(StoreOp::Check) + u64(defaults.keys_per_request_max) + keys;
  CHECK(client.ask(check, 1) == "\1");

  const string value(defaults.value_bytes_max, 'v');
  client.send(set("value", value));
  CHECK((client.ask(get("value"), 8 + value.size()) == text(value)));
  job.goes_on();

  for (const string& over : {set(key + "k", "v"), set("k", value + "v"),
                             op(StoreOp::Check) + u64(defaults.keys_per_request_max + 1)}) {
    RawClient greedy(f);
    greedy.send(over.substr(0, 64u << 10));  // The length is enough.
    CHECK(greedy.closed());
    job.goes_on();
  }
}

TEST_CASE("when the memory is used up, those who need none go on, and room is used again",
          "[hardening]") {
  ServerOptions options;
  options.memory_bytes_max = 8u << 20;
  ServerFixture f(options);
  RawClient good(f), waits(f);
  good.send(set("counter", "5"));
  good.sync();
  waits.send(wait("later"));
  waits.send("");
  int filled = 0;
  for (bool open = true; open; ++filled) {
    RawClient hog(f);
    hog.send(set(string("hog").append(std::to_string(filled)), string(1u << 20, 'x')));
    open = hog.ask(op(StoreOp::Ping) + "ping", 4) == "ping";
  }
  CHECK(filled > 4);
  CHECK(filled < 9);
  CHECK(good.ask(get("counter"), 9) == text("5"));
  CHECK(good.ask(op(StoreOp::Add) + text("counter") + u64(1), 8) == u64(6));
  CHECK(good.ask(op(StoreOp::DeleteKey) + text("hog0"), 8) == u64(1));
  good.send(set("later", "now"));
  CHECK(waits.read(1) == stop);
}

TEST_CASE("an HTTP hello, whole or byte by byte, is closed at once", "[hardening]") {
  ServerFixture f;
  Job job(f);
  for (const string& hello : {string("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
                              string("PRI * HTTP/2.0\r\n\r\nSM\r\n")}) {
    RawClient whole(f, hello);
    CHECK(whole.closed());
    RawClient first(f, hello.substr(0, 1));
    CHECK(first.closed());
    job.goes_on();
  }
}

TEST_CASE("accepted connections notice a peer that has vanished", "[hardening]") {
  UniqueFd listener = listen_socket("127.0.0.1", 0);
  const RawClient client(local_port(listener.get()), "");
  pollfd entry{listener.get(), POLLIN, 0};
  REQUIRE(::poll(&entry, 1, 10'000) == 1);
  const UniqueFd accepted(::accept(listener.get(), nullptr, nullptr));
  REQUIRE(accepted.valid());
  CHECK(option_of(accepted.get(), SOL_SOCKET, SO_KEEPALIVE) == 1);
  const int idle_s = option_of(accepted.get(), IPPROTO_TCP, TCP_KEEPIDLE);
  const int probes = option_of(accepted.get(), IPPROTO_TCP, TCP_KEEPCNT);
  const int interval_s = option_of(accepted.get(), IPPROTO_TCP, TCP_KEEPINTVL);
  CHECK(idle_s + probes * interval_s <= 120);
  CHECK(option_of(accepted.get(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 120'000);
}
