// What clients can make the store hold, and what it costs: limits of waits and of one address, and
// the memory of large values, measured.
#include <fstream>
#include <string>
#include <vector>

#include "tests/rendezvous/store/store_server_fixture.h"
#include "tests/testing/process.h"

using namespace ddprun::rendezvous;
using namespace ddprun::rendezvous::testing;
using namespace std::chrono_literals;
using std::string;

namespace {

constexpr std::size_t mebi = 1u << 20;

// A store in a process of its own, so that its memory can be measured. It ends with its input.
class StoreProcess {
 public:
  StoreProcess() : shell_({"bash", "-c", "sleep 600 | '" DDPRUN_SERVE_STORE "'"}) {
    REQUIRE(shell_.wait_for_output("\n", 20s));
    port_ = static_cast<std::uint16_t>(std::stoi(shell_.output()));
    const auto servers = ddprun::testing::descendants_running(shell_.pid(), "serve_store");
    REQUIRE(servers.size() == 1);
    pid_ = servers.front();
  }
  int pid() const { return pid_; }
  std::uint16_t port() const { return port_; }

 private:
  ddprun::testing::Process shell_;
  int pid_ = 0;
  std::uint16_t port_ = 0;
};

// "VmHWM" is the most that was ever resident, "VmRSS" what is now.
std::size_t memory_bytes(int pid, const string& what) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (string word; status >> word;) {
    std::size_t kibi = 0;
    if (word == what + ":" && status >> kibi) return kibi << 10;
  }
  return 0;
}

// Waits until so many of these connections have been closed, and removes those that are.
void await_closed(std::vector<RawClient>& clients, std::size_t count) {
  const std::size_t expected = clients.size() - count;
  while (clients.size() > expected) {
    std::vector<pollfd> entries;
    for (const RawClient& client : clients) entries.push_back({client.fd, POLLIN, 0});
    REQUIRE(::poll(entries.data(), entries.size(), 10'000) > 0);
    std::size_t at = 0;
    std::erase_if(clients, [&](const RawClient&) { return entries[at++].revents != 0; });
  }
}

string wait_all(const std::vector<string>& keys) {
  string bytes = op(StoreOp::Wait) + u64(keys.size());
  for (const string& key : keys) bytes += text(key);
  return bytes;
}

}  // namespace

TEST_CASE("a value of 64 MiB is in memory once, and twice while it is replaced", "[limits]") {
#if defined(__SANITIZE_THREAD__)
  DDPRUN_SKIP("ThreadSanitizer's shadow of a byte is four more");
#endif
  const StoreProcess store;
  const std::size_t before = memory_bytes(store.pid(), "VmRSS");
  const auto peak = [&] { return memory_bytes(store.pid(), "VmHWM") - before; };
  const RawClient writer(store.port()), reader(store.port()), other(store.port());
  REQUIRE(before > 0);
  string value(64 * mebi, 'x');

  writer.send(set("k", value));
  writer.sync();
  CHECK(peak() >= 64 * mebi);
  CHECK(peak() < 72 * mebi);
  for (int i = 0; i < 3; ++i) {
    value[mebi] = static_cast<char>('0' + i);
    writer.send(set("k", value));
    writer.sync();
  }
  CHECK(peak() < 136 * mebi);
  // Read by two at a time, one of whom begins before the value is replaced: from where it lies.
  other.send(get("k"));
  reader.send(get("k"));
  REQUIRE(reader.read(8 + value.size()) == text(value));
  REQUIRE(other.read(8 + value.size()) == text(value));
  CHECK(peak() < 136 * mebi);
  // As another command, and as one of several values.
  REQUIRE(writer.ask(op(StoreOp::DeleteKey) + text("k"), 8) == u64(1));
  writer.send(op(StoreOp::Append) + text("k") + text(value));
  writer.sync();
  REQUIRE(writer.ask(op(StoreOp::DeleteKey) + text("k"), 8) == u64(1));
  writer.send(op(StoreOp::MultiSet) + u64(2) + text("a") + text("1") + text("k") + text(value));
  writer.sync();
  REQUIRE(writer.ask(op(StoreOp::DeleteKey) + text("k"), 8) == u64(1));
  CHECK(peak() < 136 * mebi);
  CHECK(memory_bytes(store.pid(), "VmRSS") - before < 8 * mebi);  // Given back.
}

TEST_CASE("a large value that is replaced while slow clients fetch it counts until they have it",
          "[limits]") {
  ServerOptions options;
  options.memory_bytes_max = 24 * mebi;
  ServerFixture f(options);
  const RawClient writer(f);
  const string value(4 * mebi, 'x');
  std::vector<RawClient> slow;
  // Each of them holds a value of its own: together more than the budget.
  bool refused = false;
  for (int i = 0; i < 12 && !refused; ++i) {
    const RawClient setter(f);
    setter.send(set("k", value));
    refused = setter.ask(op(StoreOp::Ping) + "sync", 4) != "sync";
    slow.emplace_back(f).send(get("k") + get("k"));
    slow.back().read(1);  // It is being sent, and does not fit the socket.
  }
  CHECK(refused);
  CHECK(slow.size() >= 3);
  slow.clear();
  // What they held is free again.
  for (int i = 0; i < 3; ++i) {
    writer.send(set("k" + std::to_string(i), value));
    writer.sync();
  }
}

TEST_CASE("parked waits have a share of the memory, and no more", "[limits]") {
  ServerOptions options;
  options.wait_bytes_max = mebi;
  ServerFixture f(options);
  const RawClient job(f);
  std::vector<string> keys;
  for (int i = 0; i < 1'000; ++i) keys.push_back("key " + std::to_string(i));
  const auto wait_for = [&](const string& prefix) {
    std::vector<string> own;
    for (const string& key : keys) own.push_back(prefix + key);
    return wait_all(own);
  };
  std::vector<RawClient> strangers;
  SECTION("many waits on keys that only they know") {
    for (int i = 0; i < 12; ++i) strangers.emplace_back(f).send(wait_for(std::to_string(i)));
    await_closed(strangers, 8);  // 1,000 keys cost a little less than a quarter of it.
    CHECK(strangers.size() == 4);
    job.send(set("k", "v"));
    CHECK(job.ask(get("k"), 9) == text("v"));  // The job goes on,
    for (const RawClient& client : strangers)
      CHECK(client.ask(op(StoreOp::CancelWait), 1) == canceled);
    const RawClient late(f);  // and what they had is free again.
    late.send(wait_for("late"));
    CHECK(late.ask(op(StoreOp::CancelWait), 1) == canceled);
  }
  SECTION("many waits on the same keys") {
    for (int i = 0; i < 40; ++i) strangers.emplace_back(f).send(wait_for("same"));
    await_closed(strangers, 10);
    CHECK(strangers.size() >= 20);  // The keys are there once: each costs its links alone.
    job.sync();
  }
  SECTION("one wait on many keys") {
    for (int i = 0; i < 20'000; ++i) keys.push_back("more " + std::to_string(i));
    const RawClient stranger(f);
    stranger.send(wait_for(""));
    CHECK(stranger.closed());
    job.sync();
  }
  SECTION("many barriers") {
    for (int i = 0; i < 50; ++i) {
      strangers.emplace_back(f).send(op(StoreOp::Barrier) + text("b") + u64(51));
    }
    const RawClient last(f);
    CHECK(last.ask(op(StoreOp::Barrier) + text("b") + u64(51), 1) == stop);
    for (const RawClient& client : strangers) CHECK(client.read(1) == stop);
  }
}

TEST_CASE("one address cannot take every connection", "[limits]") {
  ServerOptions options;
  options.bind_address = "";
  options.connections_per_address_max = 3;
  ServerFixture f(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) clients.emplace_back(f).sync();
  CHECK(RawClient(f).closed());
  const RawClient elsewhere(f.port(), validate, "127.0.0.2");
  elsewhere.sync();
  clients.pop_back();
  // The place is free once the server has noticed.
  for (bool in = false; !in;) {
    const RawClient next(f);
    in = next.ask(op(StoreOp::Ping) + "sync", 4) == "sync";
  }
  elsewhere.sync();
}
