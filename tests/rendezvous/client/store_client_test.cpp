// The blocking client against the server in another thread.
#include "rendezvous/store_client.h"

#include <algorithm>
#include <asio.hpp>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/server.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using ddprun::testing::contains;
using ddprun::testing::message_of;
using std::string;
using std::chrono::milliseconds;

namespace {

struct Fixture {
  Fixture() : server(io, {}, [](asio::ip::tcp::socket, const string&) {}) {
    thread = std::thread([this] { io.run(); });
  }
  ~Fixture() {
    asio::post(io, [this] { server.close(); });
    thread.join();
  }
  StoreClient client(milliseconds timeout = milliseconds(10'000)) {
    return {"127.0.0.1", server.port(), timeout};
  }

  asio::io_context io;
  Server server;
  std::thread thread;
};

}  // namespace

TEST_CASE("every operation does what it says", "[store_client]") {
  Fixture f;
  StoreClient client = f.client();
  client.set("a", "1");
  client.set("empty", "");
  CHECK(client.get("a") == "1");
  CHECK(client.get("empty").empty());
  CHECK(client.add("n", 5) == 5);
  CHECK(client.add("n", -7) == -2);
  CHECK(client.get("n") == "-2");
  CHECK(client.compare_set("a", "x", "2") == "1");
  CHECK(client.compare_set("a", "1", "2") == "2");
  CHECK(client.compare_set("none", "x", "2") == "x");
  const std::vector<string> there{"a", "n"}, not_there{"a", "z"};
  CHECK(client.check(there));
  CHECK(!client.check(not_there));
  client.wait(there);
  client.append("a", "3");
  CHECK(client.get("a") == "23");
  CHECK(client.num_keys() == 3);
  CHECK(client.delete_key("a"));
  CHECK(!client.delete_key("a"));
  const std::vector<string> keys{"x", "y", "z"}, values{"1", "", string(100'000, 'z')};
  client.multi_set(keys, values);
  CHECK(client.multi_get(keys) == values);
  CHECK(client.multi_get({}).empty());
  CHECK(client.local_address() == "127.0.0.1");
}

TEST_CASE("a get waits for another client's set", "[store_client]") {
  Fixture f;
  StoreClient reader = f.client(), writer = f.client();
  auto value = std::async(std::launch::async, [&] { return reader.get("later"); });
  writer.set("later", "now");
  CHECK(value.get() == "now");
}

TEST_CASE("a key that is there is got, however little time there is to wait for it",
          "[store_client]") {
  Fixture f;
  StoreClient client = f.client();
  client.set("k", "v");
  const std::vector<string> keys{"k"}, values{"v"};
  for (int i = 0; i < 50; ++i) {
    REQUIRE(client.get("k", milliseconds(0)) == "v");
    REQUIRE(client.multi_get(keys, milliseconds(0)) == values);
  }
}

TEST_CASE("a large value goes there and back", "[store_client]") {
  Fixture f;
  StoreClient client = f.client();
  string value(20u << 20, 'x');
  for (std::size_t i = 0; i < value.size(); i += 97) value[i] = static_cast<char>(i);
  client.set("large", value);
  CHECK(client.get("large") == value);
}

TEST_CASE("a wait that times out names the missing keys and leaves the client usable",
          "[store_client]") {
  Fixture f;
  StoreClient client = f.client();
  client.set("there", "1");
  const std::vector<string> keys{"there", "missing"};
  const string message = message_of<StoreTimeout>([&] { client.wait(keys, milliseconds(30)); });
  CHECK(contains(message, string("wait('there', 'missing') on store 127.0.0.1:") +
                              std::to_string(f.server.port())));
  CHECK(contains(message, "timed out after 30 ms; missing: 'missing'"));
  CHECK(client.add("n", 1) == 1);
}

TEST_CASE("waits that cross with the set of their key end well either way", "[store_client]") {
  Fixture f;
  StoreClient waiter = f.client(), setter = f.client();
  for (int i = 0; i < 200; ++i) {
    const std::vector<string> keys{string("k").append(std::to_string(i))};
    auto done = std::async(std::launch::async, [&] { setter.set(keys[0], "1"); });
    try {
      waiter.wait(keys, milliseconds(0));
    } catch (const StoreTimeout&) {
    }
    done.get();
    REQUIRE(waiter.add("n", 1) == i + 1);
  }
}

TEST_CASE("a client that starts before its store connects when the store is there",
          "[store_client]") {
  std::uint16_t port = 0;
  { port = Fixture().server.port(); }
  auto connected = std::async(std::launch::async, [&] {
    StoreClient client("127.0.0.1", port, milliseconds(10'000));
    return client.add("n", 1);
  });
  asio::io_context io;
  ServerOptions options;
  options.port = port;
  Server server(io, options, nullptr);
  std::thread thread([&] { io.run(); });
  CHECK(connected.get() == 1);
  asio::post(io, [&] { server.close(); });
  thread.join();
}

TEST_CASE("a store that is not there is named with the reason", "[store_client]") {
  std::uint16_t port = 0;
  { port = Fixture().server.port(); }
  const string message =
      message_of<StoreError>([&] { StoreClient client("127.0.0.1", port, milliseconds(50)); });
  CHECK(contains(message, string("cannot connect to store 127.0.0.1:") + std::to_string(port) +
                              " within 50 ms: Connection refused"));
}

TEST_CASE("a listener that is no store is noticed", "[store_client]") {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  const std::uint16_t port = acceptor.local_endpoint().port();
  SECTION("it is silent") {
    CHECK(contains(
        message_of<StoreError>([&] { StoreClient client("127.0.0.1", port, milliseconds(50)); }),
        "the store did not answer in time"));
  }
  SECTION("it says something else") {
    auto answer = std::async(std::launch::async, [&] {
      asio::ip::tcp::socket socket = acceptor.accept();
      char hello[10];
      asio::read(socket, asio::buffer(hello));
      asio::write(socket, asio::buffer("HTTP/1.1 400", 12));
      return std::make_unique<asio::ip::tcp::socket>(std::move(socket));
    });
    CHECK(contains(
        message_of<StoreError>([&] { StoreClient client("127.0.0.1", port, milliseconds(50)); }),
        "cannot connect to store"));
  }
}

TEST_CASE("a store that dies while a client waits ends the wait", "[store_client]") {
  auto f = std::make_unique<Fixture>();
  StoreClient client("127.0.0.1", f->server.port(),
                     StoreClientOptions{.reconnect_timeout = milliseconds(50)});
  auto failed = std::async(std::launch::async,
                           [&] { return message_of<StoreError>([&] { client.get("never"); }); });
  f.reset();
  CHECK(contains(failed.get(), "store 127.0.0.1:"));
}

TEST_CASE("queues are first in, first out, and a pop waits for an item", "[store_client]") {
  Fixture f;
  StoreClient popper = f.client(), pusher = f.client();
  CHECK(!popper.try_queue_pop("q"));
  auto item = std::async(std::launch::async, [&] { return popper.queue_pop("q"); });
  pusher.queue_push("q", "1");
  CHECK(item.get() == "1");
  pusher.queue_push("q", "2");
  pusher.queue_push("q", "");
  CHECK(pusher.queue_len("q") == 2);
  CHECK(popper.try_queue_pop("q") == "2");
  CHECK(popper.queue_pop("q").empty());
  CHECK(contains(message_of<StoreTimeout>([&] { popper.queue_pop("q", milliseconds(20)); }),
                 "timed out after 20 ms; missing: 'q'"));
}

TEST_CASE("two clients that pop one item leave one of them waiting", "[store_client]") {
  Fixture f;
  StoreClient first = f.client(), second = f.client(), pusher = f.client();
  auto one = std::async(std::launch::async, [&] { return first.queue_pop("q"); });
  auto other = std::async(std::launch::async, [&] { return second.queue_pop("q"); });
  pusher.queue_push("q", "item");
  pusher.queue_push("q", "item");
  CHECK(one.get() == "item");
  CHECK(other.get() == "item");
  CHECK(pusher.queue_len("q") == 0);
}

TEST_CASE("a barrier returns when all have come", "[store_client]") {
  Fixture f;
  StoreClient first = f.client(), second = f.client();
  auto passed = std::async(std::launch::async, [&] { first.barrier("b", 2); });
  second.barrier("b", 2);
  passed.get();
  CHECK(second.get("b") == "2");
  CHECK(contains(message_of<StoreTimeout>([&] { first.barrier("alone", 2, milliseconds(20)); }),
                 "barrier('alone') on store 127.0.0.1:"));
  CHECK(first.add("n", 1) == 1);  // Still usable.
}

TEST_CASE("list_keys names the keys that clients set", "[store_client]") {
  Fixture f;
  StoreClient client = f.client();
  client.set("a", "1");
  client.add("b/c", 1);
  client.queue_push("queues are not listed", "x");
  std::vector<string> keys = client.list_keys();
  std::sort(keys.begin(), keys.end());
  CHECK(keys == std::vector<string>{"a", "b/c"});
}

TEST_CASE("many keys, and large values among them, are set and fetched", "[store_client]") {
  Fixture f;
  StoreClient client = f.client();
  std::vector<string> keys, values;
  for (int i = 0; i < 40'000; ++i) {
    keys.push_back("key " + std::to_string(i));
    values.push_back(i % 10'000 == 7 ? string(300'000, static_cast<char>('a' + i / 10'000))
                                     : std::to_string(i));
  }
  client.multi_set(keys, values);
  CHECK(client.num_keys() == 40'000);
  CHECK(client.multi_get(keys) == values);
  client.wait(keys);
  CHECK(client.check(keys));
}

TEST_CASE("keys and values that do not pair up are refused before anything is sent",
          "[store_client]") {
  Fixture f;
  StoreClient client = f.client();
  const std::vector<string> keys{"a", "b"}, values{"1"};
  CHECK_THROWS_AS(client.multi_set(keys, values), StoreError);
  CHECK(client.num_keys() == 0);
}
