// What the blocking client does when its connection breaks, at any byte, and when the store it then
// finds is not the one it had.
#include <string>
#include <vector>

#include "rendezvous/store_client.h"
#include "rendezvous/wire/store_attempt.h"
#include "tests/rendezvous/client/cutting_relay.h"
#include "tests/rendezvous/store/store_server_fixture.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using namespace ddprun::rendezvous::testing;
using ddprun::testing::contains;
using ddprun::testing::message_of;
using std::string;
using std::chrono::milliseconds;

namespace {

using Strings = std::vector<string>;

constexpr std::size_t all = ~std::size_t{0};

// `prover`: of a job with a secret, whose store does not ask for the proof here.
StoreClient client_of(std::uint16_t port, const string& attempt = {}, bool prover = false) {
  StoreClientOptions options{.timeout = milliseconds(10'000), .attempt = attempt};
  if (prover) options.prove = [](std::string_view) { return string("proof"); };
  return {"127.0.0.1", port, options};
}

// Everything that may be asked again. `prefix` keeps the keys of one run apart.
void repeatable_calls(StoreClient& client, const string& prefix) {
  const string a = prefix + "a", b = prefix + "b", large(100'000, 'x');
  client.set(a, "1");
  client.set(b, "2");
  const Strings both{a, b}, values{"3", "4"}, missing{prefix + "z"};
  REQUIRE(client.get(a) == "1");
  REQUIRE(client.check(both));
  REQUIRE(!client.check(missing));
  REQUIRE(client.multi_get(both) == Strings{"1", "2"});
  client.multi_set(both, values);
  client.wait(both);
  REQUIRE(client.multi_get(both) == values);
  client.set(a, "5");
  client.set(a, "6");
  REQUIRE(client.add(prefix + "n", 0) == 0);
  REQUIRE(client.get(a) == "6");
  REQUIRE(client.num_keys() > 2);
  REQUIRE(client.queue_len(prefix + "q") == 0);
}

// How many bytes these calls take in one direction: the cuts are tried at each.
struct Traffic {
  std::size_t to_store = 0, to_client = 0;
};

}  // namespace

TEST_CASE("calls that may be repeated survive a break after any byte", "[store_reconnect]") {
  ServerFixture f;
  const bool to_store = GENERATE(true, false);
  int run = 0;
  std::size_t cut_at = 0;
  for (bool cut = true; cut; ++cut_at) {
    CuttingRelay relay(f.port(), to_store ? cut_at : all, to_store ? all : cut_at);
    StoreClient client = client_of(relay.port());
    repeatable_calls(client, std::to_string(run++) + "/");
    cut = relay.has_cut();
  }
  CHECK(cut_at > 100);  // The last run was beyond the last byte.
}

TEST_CASE("a call that must not be repeated is carried out once, or says that it may not have been",
          "[store_reconnect]") {
  ServerFixture f;
  StoreClient observer = client_of(f.port());
  const bool to_store = GENERATE(true, false);
  int uncertain = 0, runs = 0;
  for (bool cut = true; cut; ++runs) {
    const auto at = static_cast<std::size_t>(runs);
    CuttingRelay relay(f.port(), to_store ? at : all, to_store ? all : at);
    StoreClient client = client_of(relay.port());
    const string prefix = std::to_string(to_store) + "/" + std::to_string(runs) + "/";
    const auto once = [&](const string& what, auto call, auto carried_out) {
      INFO(what << ", cut after " << at << " bytes");
      try {
        call();
        REQUIRE(carried_out() == 1);
      } catch (const StoreUncertain& error) {
        ++uncertain;
        REQUIRE(contains(error.what(), "whether the store has carried it out is not known"));
        REQUIRE(carried_out() <= 1);
      }
    };
    once(
        "add", [&] { client.add(prefix + "n", 1); }, [&] { return observer.add(prefix + "n", 0); });
    once(
        "append", [&] { client.append(prefix + "t", "x"); },
        [&] { return observer.compare_set(prefix + "t", "", "") == "x" ? 1 : 0; });
    once(
        "queue_push", [&] { client.queue_push(prefix + "q", "item"); },
        [&] { return observer.queue_len(prefix + "q"); });
    cut = relay.has_cut();
  }
  CHECK(uncertain > 0);
  CHECK(uncertain <= runs);
}

TEST_CASE("a wait goes on over a break, within its own deadline", "[store_reconnect]") {
  ServerFixture f;
  // The handshake, and nothing of the WAIT; then the WAIT, and nothing of its answer.
  const std::size_t to_store = GENERATE(as<std::size_t>{}, 70, all);
  CuttingRelay relay(f.port(), to_store, to_store == all ? 4 + 8 + 17 : all);
  StoreClient waiter = client_of(relay.port()), setter = client_of(f.port());
  auto released = std::async(std::launch::async, [&] { return waiter.get("later"); });
  setter.set("later", "now");
  CHECK(released.get() == "now");
  const Strings never{"never"};
  CHECK(contains(message_of<StoreTimeout>([&] { waiter.wait(never, milliseconds(20)); }),
                 "timed out after 20 ms; missing: 'never'"));
}

TEST_CASE("a client of an attempt that is over is turned away when it connects again",
          "[store_reconnect]") {
  const bool prover = GENERATE(false, true);
  ServerFixture f;
  f.run([&] { f.server->start_attempt("0"); });
  StoreClient late = client_of(f.port(), "0", prover);
  late.set("k", "old");
  CHECK(late.get("k") == "old");
  f.run([&] { f.server->start_attempt("1"); });
  late.set("k", "late");  // Has no answer: it is not known yet that nobody will read it.
  StoreClient current = client_of(f.port(), "1", prover);
  const Strings keys{"k"};
  for (int i = 0; i < 2; ++i) {
    CHECK(contains(message_of<StoreAttemptOver>([&] { late.add("n", 1); }), "another attempt"));
    CHECK(contains(message_of<StoreAttemptOver>([&] { late.set("k", "x"); }), "another attempt"));
    CHECK(contains(message_of<StoreAttemptOver>([&] { late.get("k"); }), "another attempt"));
  }
  CHECK(!current.check(keys));
  CHECK(current.num_keys() == 0);
}

TEST_CASE("a process that starts late, of an attempt that is over, is turned away",
          "[store_reconnect]") {
  const bool prover = GENERATE(false, true);
  ServerFixture f;
  f.run([&] { f.server->start_attempt("1"); });
  CHECK(contains(message_of<StoreAttemptOver>([&] { client_of(f.port(), "0", prover); }),
                 "it serves attempt 1 of the job, and this process is of attempt 0"));
  CHECK(client_of(f.port(), "1", prover).num_keys() == 0);
  CHECK(client_of(f.port(), "", prover).num_keys() == 0);  // Who does not know is let in.
}

TEST_CASE("16.1: an attempt of an older term is another one, whatever its number",
          "[store_reconnect]") {
  const bool prover = GENERATE(false, true);
  ServerFixture f;
  f.run([&] { f.server->start_attempt("2.5"); });
  CHECK(contains(message_of<StoreAttemptOver>([&] { client_of(f.port(), "0.5", prover); }),
                 "it serves attempt 2.5 of the job, and this process is of attempt 0.5"));
  CHECK(client_of(f.port(), "2.5", prover).num_keys() == 0);
  // Programs from before there were terms are told apart by their attempt's number.
  CHECK(client_of(f.port(), "5", prover).num_keys() == 0);
  CHECK(contains(message_of<StoreAttemptOver>([&] { client_of(f.port(), "4", prover); }),
                 "it serves attempt 5 of the job, and this process is of attempt 4"));
}

TEST_CASE("the store itself closes a connection of another attempt, whatever follows",
          "[store_reconnect]") {
  ServerFixture f;
  f.run([&] { f.server->start_attempt("1"); });
  const RawClient old(f);
  const string question =
      op(StoreOp::CompareSet) + text("ddprun/attempt/0") + text("") + text("#x");
  old.send(question + set("/k", "late"));
  CHECK(old.read(10) == u64(18) + "1#");
  old.read(16);
  CHECK(old.closed());
  CHECK(client_of(f.port(), "1").num_keys() == 0);
}

TEST_CASE("another store at the same port is not taken for the one before", "[store_reconnect]") {
  auto first = std::make_unique<ServerFixture>();
  ServerOptions options;
  options.port = first->port();
  StoreClient client = client_of(first->port());
  client.set("k", "v");
  CHECK(client.add("n", 1) == 1);
  first.reset();
  const ServerFixture second(options);
  CHECK(contains(message_of<StoreAttemptOver>([&] { client.add("n", 1); }), "or is another one"));
  CHECK(client_of(second.port()).num_keys() == 0);
}

TEST_CASE("a store that stays away is given up after the time for that", "[store_reconnect]") {
  auto store = std::make_unique<ServerFixture>();
  StoreClient client("127.0.0.1", store->port(),
                     StoreClientOptions{.reconnect_timeout = milliseconds(20)});
  const string name = "127.0.0.1:" + std::to_string(store->port());
  store.reset();
  CHECK(contains(message_of<StoreError>([&] { client.num_keys(); }),
                 "cannot connect to store " + name + " within 20 ms: Connection refused"));
}

TEST_CASE("a client that shall not connect again says what broke", "[store_reconnect]") {
  ServerFixture f;
  StoreClient client("127.0.0.1", f.port(),
                     StoreClientOptions{.reconnect_timeout = milliseconds(0)});
  f.run([&] { f.server->start_attempt(); });
  CHECK(contains(message_of<StoreError>([&] { client.num_keys(); }), "the store closed"));
  CHECK(contains(message_of<StoreError>([&] { client.num_keys(); }), "was given up before"));
}
