// Python torch's process groups on our server, and our client against torch's own server.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "rendezvous/store_client.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

namespace {

bool python_torch_is_here() { return std::filesystem::exists(DDPRUN_PEER_PYTHON); }

std::string oracle(const std::string& arguments) {
  return std::string("'") + DDPRUN_PEER_PYTHON + "' '" + DDPRUN_STORE_ORACLE + "' " + arguments;
}

// Everything that the command prints, and its exit status at the end.
std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(("timeout 150 " + command + " 2>&1").c_str(), "re");
  std::string output;
  char buffer[4096];
  for (std::size_t got; (got = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.append(buffer, got);
  }
  return output + "exit " + std::to_string(WEXITSTATUS(::pclose(pipe)));
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
  int in[2];
  REQUIRE(::pipe(in) == 0);  // The server ends when this end of its input is closed.
  FILE* server = ::popen(("exec timeout 60 " + oracle("serve") + " <&" + std::to_string(in[0]) +
                          " " + std::to_string(in[1]) + ">&- 2>/dev/null")
                             .c_str(),
                         "r");
  ::close(in[0]);
  int port = 0;
  REQUIRE(::fscanf(server, "%d", &port) == 1);
  {
    StoreClient client("127.0.0.1", static_cast<std::uint16_t>(port),
                       std::chrono::milliseconds(10'000));
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
    const StoreClient same("127.0.0.1", static_cast<std::uint16_t>(port));
    CHECK(same.store_identity() == client.store_identity());
    StoreClient moved = std::move(client);
    CHECK(moved.get("n") == "y");
  }
  ::close(in[1]);
  CHECK(WEXITSTATUS(::pclose(server)) == 0);
}
