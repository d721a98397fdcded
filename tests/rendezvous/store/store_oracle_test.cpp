// Python torch's process groups on our server, and our client against torch's own server.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/store_client.h"
#include "tests/rendezvous/store/store_server_fixture.h"
#include "tests/testing/patience.h"

using namespace ddprun::rendezvous;
using namespace ddprun::rendezvous::testing;
using ddprun::testing::patience_seconds;

namespace {

bool python_torch_is_here() { return std::filesystem::exists(DDPRUN_PEER_PYTHON); }

std::string oracle(const std::string& arguments, const std::string& python = DDPRUN_PEER_PYTHON) {
  return std::string("'").append(python).append("' '" DDPRUN_STORE_ORACLE "' ").append(arguments);
}

// Everything that the command prints, and its exit status at the end.
std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(("timeout " + patience_seconds(50) + " " + command + " 2>&1").c_str(), "re");
  std::string output;
  char buffer[4096];
  for (std::size_t got; (got = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.append(buffer, got);
  }
  return output + "exit " + std::to_string(WEXITSTATUS(::pclose(pipe)));
}

// Torch's own server, which ends when its input does.
class StockServer {
 public:
  explicit StockServer(const std::string& python) {
    int in[2];
    REQUIRE(::pipe(in) == 0);
    const std::string files =
        " <&" + std::to_string(in[0]) + " " + std::to_string(in[1]) + ">&- 2>/dev/null";
    server_ = ::popen(
        ("exec timeout " + patience_seconds(60) + " " + oracle("serve", python) + files).c_str(),
        "r");
    ::close(in[0]);
    input_ = in[1];
    REQUIRE(::fscanf(server_, "%d", &port_) == 1);
  }
  ~StockServer() {
    if (server_ != nullptr) end();
  }
  StockServer(const StockServer&) = delete;
  StockServer& operator=(const StockServer&) = delete;

  std::uint16_t port() const { return static_cast<std::uint16_t>(port_); }
  int end() {
    ::close(input_);
    return WEXITSTATUS(::pclose(std::exchange(server_, nullptr)));
  }

 private:
  FILE* server_ = nullptr;
  int input_ = -1;
  int port_ = 0;
};

// What a store answers to barriers of every kind (but torch 2.15's server does not wake a WAIT for
// the key that a BARRIER creates, and ours does), as text: the same in whichever order what several
// clients send arrives.
std::string barrier_exchanges(std::uint16_t port) {
  const auto barrier = [](const std::string& key, std::uint64_t count) {
    return op(StoreOp::Barrier) + text(key) + u64(count);
  };
  std::string log;
  const auto note = [&log](const char* what, const std::string& bytes) {
    log.append(what).append(":");
    for (const char byte : bytes) {
      log.append(" ").append(std::to_string(static_cast<unsigned char>(byte)));
    }
    log += "\n";
  };
  const RawClient first(port), second(port), third(port);
  note("alone", first.ask(barrier("/one", 1), 1));
  first.send(barrier("/two", 2));
  note("the last of two", second.ask(barrier("/two", 2), 1));
  note("the first of two", first.read(1));
  note("after the release", third.ask(barrier("/two", 2), 1));
  note("its key", third.ask(get("/two"), 9));
  first.send(barrier("/never", 2));
  note("given up", first.ask(op(StoreOp::CancelWait), 1));
  note("and counted", second.ask(get("/never"), 9));
  note("so the next one passes", second.ask(barrier("/never", 2), 1));
  const RawClient bad(port);
  bad.send(set("/text", "no number"));
  bad.send(barrier("/text", 1));
  note("a key that is no number", bad.closed() ? "closed" : "open");
  return log;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

TEST_CASE("torch's gloo works through our server, in the next attempt as well", "[oracle]") {
  if (!python_torch_is_here()) DDPRUN_SKIP("no Python torch at " DDPRUN_PEER_PYTHON);
  const std::string output = output_of(oracle(std::string("gloo '") + DDPRUN_SERVE_STORE + "'"));
  INFO(output);
  CHECK(output.find("gloo ok\n") != std::string::npos);
  CHECK(ends_with(output, "exit 0"));
}

TEST_CASE("our client works against torch's own server", "[oracle]") {
  if (!python_torch_is_here()) DDPRUN_SKIP("no Python torch at " DDPRUN_PEER_PYTHON);
  StockServer server(DDPRUN_PEER_PYTHON);
  const std::uint16_t port = server.port();
  {
    StoreClient client("127.0.0.1", port, std::chrono::milliseconds(10'000));
    client.set("a", "1");
    CHECK(client.get("a") == "1");
    CHECK(client.add("n", 5) == 5);
    CHECK(client.compare_set("a", "1", "2") == "2");
    const std::vector<std::string> keys{"a", "n"}, missing{"a", "never"}, values{"x", "y"};
    CHECK(client.check(keys));
    CHECK(!client.check(missing));
    CHECK_THROWS_AS(client.wait(missing, std::chrono::milliseconds(30)), StoreTimeout);
    client.append("a", "3");
    CHECK(client.get("a") == "23");
    client.multi_set(keys, values);
    CHECK(client.multi_get(keys) == values);
    CHECK(client.num_keys() == 3);  // And that which tells one store from another.
    CHECK(client.delete_key("a"));
    CHECK(client.num_keys() == 2);
    CHECK(client.list_keys() == std::vector<std::string>{"n"});
    client.queue_push("q", "item");
    CHECK(client.queue_len("q") == 1);
    CHECK(client.queue_pop("q") == "item");
    CHECK(!client.try_queue_pop("q"));
    const StoreClient same("127.0.0.1", port);
    CHECK(same.store_identity() == client.store_identity());
    StoreClient moved = std::move(client);
    CHECK(moved.get("n") == "y");
  }
  CHECK(server.end() == 0);
}

TEST_CASE("BARRIER is answered as torch's own server answers it, byte for byte", "[oracle]") {
  std::string python;  // Torch 2.12 or later, of those that scripts/setup_store_clients made.
  std::istringstream pythons(::getenv("DDPRUN_TORCH_CLIENTS") ? ::getenv("DDPRUN_TORCH_CLIENTS")
                                                              : "");
  for (std::string one; python.empty() && std::getline(pythons, one, ':');) {
    if (output_of(oracle("has_barrier", one)) == "yes\nexit 0") python = one;
  }
  if (python.empty()) DDPRUN_SKIP("DDPRUN_TORCH_CLIENTS names no Python with torch 2.12 or later");
  StockServer stock(python);
  const ServerFixture ours;
  const std::string expected = barrier_exchanges(stock.port());
  CHECK(barrier_exchanges(ours.port()) == expected);
  CHECK(stock.end() == 0);
}
