// What the store keeps, and what c10d's clients expect of it, operation by operation.
#include "rendezvous/store/store.h"

#include <limits>
#include <string>
#include <vector>

#include "rendezvous/store/store_number.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using std::string;

namespace {

template <class Number>
string n(Number number) {
  string out;
  put_number(out, number);
  return out;
}
string i64(std::int64_t number) { return n(number); }
string bytes(std::string_view text) {
  string out;
  put_string(out, text);
  return out;
}
const string stop("\0", 1), canceled("\1", 1), ready("\0", 1), not_ready("\1", 1);

using Keys = std::vector<std::string_view>;
using Ids = std::vector<ConnectionId>;

// A store to which connections 0, 1, 2 ... talk.
struct Fixture {
  explicit Fixture(std::size_t memory = 1u << 30, StoreLimits limits = {})
      : budget(memory), store(limits, budget, 7) {}

  string ask(ConnectionId id, StoreRequest request) {
    ReplyBuffer reply;
    woken.clear();
    refused = store.handle(id, request, reply, woken);
    return reply.text();
  }
  string set(ConnectionId id, std::string_view key, std::string_view value) {
    return ask(id, {.op = StoreOp::Set, .key = key, .value = value});
  }
  string get(std::string_view key) { return ask(9, {.op = StoreOp::Get, .key = key}); }
  string add(ConnectionId id, std::string_view key, std::int64_t delta) {
    return ask(id, {.op = StoreOp::Add, .key = key, .number = delta});
  }
  string compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    return ask(9, {.op = StoreOp::CompareSet, .key = key, .value = expected, .desired = desired});
  }
  string list(ConnectionId id, StoreOp op, const Keys& keys) {
    return ask(id, {.op = op, .items = keys});
  }
  string wait(ConnectionId id, const Keys& keys) { return list(id, StoreOp::Wait, keys); }
  string check(const Keys& keys) { return list(9, StoreOp::Check, keys); }
  string erase(std::string_view key) { return ask(9, {.op = StoreOp::DeleteKey, .key = key}); }
  string push(std::string_view key, std::string_view value) {
    return ask(9, {.op = StoreOp::QueuePush, .key = key, .value = value});
  }
  string pop(ConnectionId id, std::string_view key) {
    return ask(id, {.op = StoreOp::QueuePop, .key = key});
  }
  string barrier(ConnectionId id, std::string_view key, std::int64_t world) {
    return ask(id, {.op = StoreOp::Barrier, .key = key, .number = world});
  }

  void disconnect(ConnectionId id) {
    woken.clear();
    store.disconnect(id, woken);
  }

  MemoryBudget budget;
  Store store;
  Ids woken;       // By the last request, or the last disconnection.
  string refused;  // The reason to close the connection of the last request.
};

}  // namespace

TEST_CASE("set overwrites, and an empty value is a value", "[store]") {
  Fixture f;
  CHECK(f.set(0, "a", "1").empty());
  f.set(0, "a", "");
  CHECK(f.get("a") == bytes(""));
  CHECK(f.check({"a"}) == ready);
  CHECK(f.store.num_keys() == 1);
}

TEST_CASE("a missing key reads as an empty value", "[store]") {
  Fixture f;
  f.set(0, "a", "1");
  CHECK(f.get("none") == bytes(""));
  CHECK(f.list(0, StoreOp::MultiGet, {"none", "a", "none"}) == bytes("") + bytes("1") + bytes(""));
  CHECK(f.list(0, StoreOp::MultiGet, {}).empty());
}

TEST_CASE("counters are decimal text", "[store]") {
  Fixture f;
  CHECK(f.add(0, "n", 5) == i64(5));
  CHECK(f.add(0, "n", -7) == i64(-2));
  CHECK(f.get("n") == bytes("-2"));
  CHECK(f.add(0, "n", 0) == i64(-2));
}

TEST_CASE("add reads text as std::stoll does", "[store]") {
  Fixture f;
  const auto added = [&](std::string_view before) {
    f.set(0, "n", before);
    return f.add(0, "n", 1);
  };
  CHECK(added("12abc") == i64(13));
  CHECK(added(" \t\n7") == i64(8));
  CHECK(added("+7") == i64(8));
  CHECK(added("-7") == i64(-6));
  CHECK(f.refused.empty());
  for (const char* bad : {"", " ", "x", "-", "+", "+-1", "9223372036854775808"}) {
    INFO(bad);
    CHECK(added(bad).empty());
    CHECK(f.refused.find("not a number") != string::npos);
    CHECK(f.get("n") == bytes(bad));
  }
}

TEST_CASE("a counter wraps around", "[store]") {
  Fixture f;
  f.set(0, "n", "9223372036854775807");
  CHECK(f.add(0, "n", 1) == i64(std::numeric_limits<std::int64_t>::min()));
  CHECK(f.add(0, "n", -1) == i64(std::numeric_limits<std::int64_t>::max()));
}

TEST_CASE("compare_set swaps on a match and tells the current value otherwise", "[store]") {
  Fixture f;
  f.set(0, "a", "1");
  CHECK(f.compare_set("a", "2", "3") == bytes("1"));
  CHECK(f.compare_set("a", "1", "3") == bytes("3"));
  CHECK(f.get("a") == bytes("3"));
}

TEST_CASE("compare_set on a missing key creates it only for an empty expectation", "[store]") {
  Fixture f;
  f.wait(1, {"a"});
  CHECK(f.compare_set("a", "x", "1") == bytes("x"));
  CHECK(f.woken.empty());
  CHECK(f.check({"a"}) == not_ready);
  CHECK(f.compare_set("a", "", "1") == bytes("1"));
  CHECK(f.woken == Ids{1});
}

TEST_CASE("a deleted key is gone, and nobody is woken", "[store]") {
  Fixture f;
  f.set(0, "a", "1");
  CHECK(f.erase("a") == i64(1));
  CHECK(f.erase("a") == i64(0));
  CHECK(f.get("a") == bytes(""));
  f.wait(1, {"a"});
  CHECK(f.erase("a") == i64(0));
  CHECK(f.woken.empty());
  CHECK(f.store.waiting(1));
}

TEST_CASE("delete_key leaves a queue of that name alone", "[store]") {
  Fixture f;
  f.push("q", "1");
  CHECK(f.erase("q") == i64(0));
  CHECK(f.pop(0, "q") == i64(1) + bytes("1"));
}

TEST_CASE("num_keys counts keys, not queues and not keys that are waited for", "[store]") {
  Fixture f;
  f.set(0, "a", "1");
  f.add(0, "n", 1);
  f.push("q", "1");
  f.wait(1, {"b"});
  CHECK(f.ask(0, {.op = StoreOp::NumKeys}) == i64(2));
  CHECK(f.ask(0, {.op = StoreOp::ListKeys}).size() == 8 + 9 + 9);
}

TEST_CASE("append creates, extends, wakes, and has a limit", "[store]") {
  Fixture f(1u << 30, {.value_bytes_max = 40'000});
  const auto append = [&](std::string_view value) {
    return f.ask(0, {.op = StoreOp::Append, .key = "a", .value = value});
  };
  f.wait(1, {"a"});
  append("po");
  CHECK(f.woken == Ids{1});
  append("tato");
  CHECK(f.get("a") == bytes("potato"));
  const string large(30'000, 'x');
  append(large);
  CHECK(f.get("a") == bytes("potato" + large));
  append(large);
  CHECK(f.refused.find("value_bytes_max") != string::npos);
}

TEST_CASE("check asks for all keys, and none are always there", "[store]") {
  Fixture f;
  f.set(0, "a", "1");
  f.push("q", "1");
  CHECK(f.check({}) == ready);
  CHECK(f.check({"a", "q"}) == ready);
  CHECK(f.check({"a", "b"}) == not_ready);
}

TEST_CASE("multi_set sets every pair and wakes", "[store]") {
  Fixture f;
  f.wait(1, {"a", "b"});
  f.list(0, StoreOp::MultiSet, {"a", "1", "b", "2", "c", ""});
  CHECK(f.woken == Ids{1});
  CHECK(f.get("b") == bytes("2"));
  CHECK(f.store.num_keys() == 3);
}

TEST_CASE("a wait on keys that exist, or on none, is over at once", "[store]") {
  Fixture f;
  f.set(0, "a", "1");
  CHECK(f.wait(1, {"a"}) == stop);
  CHECK(f.wait(1, {}) == stop);
}

TEST_CASE("a wait on two keys is released by the second", "[store]") {
  Fixture f;
  CHECK(f.wait(1, {"a", "b"}).empty());
  f.set(0, "b", "1");
  CHECK(f.woken.empty());
  f.add(0, "a", 0);
  CHECK(f.woken == Ids{1});
  f.set(0, "a", "again");
  CHECK(f.woken.empty());
}

TEST_CASE("a key that was set and deleted again still counts for a wait", "[store]") {
  Fixture f;
  f.wait(1, {"a", "b"});
  f.set(0, "a", "1");
  f.erase("a");
  f.set(0, "b", "1");
  CHECK(f.woken == Ids{1});
}

TEST_CASE("a key may be waited for twice", "[store]") {
  Fixture f;
  f.wait(1, {"a", "a"});
  f.set(0, "a", "1");
  CHECK(f.woken == Ids{1});
}

TEST_CASE("all who wait for a key are woken, in order", "[store]") {
  Fixture f;
  for (ConnectionId id = 1; id <= 100; ++id) f.wait(id, {"a"});
  f.disconnect(50);
  f.set(0, "a", "1");
  REQUIRE(f.woken.size() == 99);
  CHECK(std::is_sorted(f.woken.begin(), f.woken.end()));
}

TEST_CASE("cancel_wait is answered once, with and without a wait", "[store]") {
  Fixture f;
  CHECK(f.ask(1, {.op = StoreOp::CancelWait}) == canceled);
  f.wait(1, {"a"});
  CHECK(f.ask(1, {.op = StoreOp::CancelWait}) == canceled);
  f.set(0, "a", "1");
  CHECK(f.woken.empty());
}

TEST_CASE("any other command of a waiting client ends its wait", "[store]") {
  Fixture f;
  f.wait(1, {"a"});
  f.set(1, "b", "1");
  CHECK(!f.store.waiting(1));
  f.wait(1, {"c"});
  f.set(0, "a", "1");
  CHECK(f.woken.empty());
  f.set(1, "c", "its own key");
  CHECK(f.woken.empty());
}

TEST_CASE("who disconnects while waiting is forgotten, with its keys", "[store]") {
  Fixture f;
  const std::size_t before = f.budget.used();
  f.wait(1, {"a", "b", "a"});
  CHECK(f.budget.used() > before);
  f.disconnect(1);
  CHECK(f.budget.used() == before);
  f.set(0, "a", "1");
  CHECK(f.woken.empty());
}

TEST_CASE("a queue is first in, first out, apart from the keys", "[store]") {
  Fixture f;
  f.push("q", "1");
  f.push("q", "");
  f.set(0, "q", "key");
  CHECK(f.ask(0, {.op = StoreOp::QueueLen, .key = "q"}) == i64(2));
  CHECK(f.pop(0, "q") == i64(2) + bytes("1"));
  CHECK(f.pop(0, "q") == i64(1) + bytes(""));
  CHECK(f.pop(0, "q") == i64(0));
  CHECK(f.ask(0, {.op = StoreOp::QueueLen, .key = "none"}) == i64(0));
  CHECK(f.get("q") == bytes("key"));
}

TEST_CASE("a push wakes one waiter, the oldest, once", "[store]") {
  Fixture f;
  f.wait(1, {"q"});
  f.wait(2, {"q"});
  f.push("q", "1");
  CHECK(f.woken == Ids{1});
  f.pop(1, "q");
  f.wait(1, {"other"});
  f.push("q", "2");
  CHECK(f.woken == Ids{2});
  CHECK(f.store.waiting(1));
}

TEST_CASE("who is woken by a push and does not pop has the next waiter woken", "[store]") {
  Fixture f;
  f.wait(1, {"q"});
  f.wait(2, {"q"});
  f.push("q", "1");
  REQUIRE(f.woken == Ids{1});
  SECTION("it is gone") { f.disconnect(1); }
  SECTION("it gives up") { f.ask(1, {.op = StoreOp::CancelWait}); }
  SECTION("it asks for something else") { f.add(1, "n", 1); }
  SECTION("it pops from another queue") { f.pop(1, "r"); }
  CHECK(f.woken == Ids{2});
  CHECK(f.pop(2, "q") == i64(1) + bytes("1"));
}

TEST_CASE("a waiter is not woken for an item that another was woken for", "[store]") {
  Fixture f;
  for (const ConnectionId id : {1, 2, 3}) f.wait(id, {"q"});
  f.push("q", "1");
  f.push("q", "2");
  SECTION("both are popped") {
    f.pop(1, "q");
    f.pop(2, "q");
    CHECK(f.woken.empty());
  }
  SECTION("one was taken by a client that did not wait") {
    f.pop(9, "q");
    f.disconnect(1);
    CHECK(f.woken.empty());
    f.disconnect(2);
    CHECK(f.woken == Ids{3});
  }
  SECTION("all were taken, and those who were woken end") {
    f.pop(9, "q");
    f.pop(9, "q");
    f.disconnect(1);
    f.disconnect(2);
    CHECK(f.woken.empty());
    f.disconnect(3);
    CHECK(f.budget.used() == 0);
  }
}

TEST_CASE("a push passes a waiter that still lacks another key, to the next", "[store]") {
  Fixture f;
  f.wait(1, {"q", "a"});
  f.wait(2, {"q"});
  f.push("q", "1");
  CHECK(f.woken == Ids{2});
  f.set(0, "a", "1");
  CHECK(f.woken == Ids{1});
}

TEST_CASE("a wait on a filled queue and a missing key is released by the key", "[store]") {
  Fixture f;
  f.push("q", "1");
  f.wait(1, {"q", "a"});
  f.set(0, "a", "1");
  CHECK(f.woken == Ids{1});
}

TEST_CASE("the last to arrive at a barrier releases all", "[store]") {
  Fixture f;
  CHECK(f.barrier(1, "b", 3).empty());
  CHECK(f.barrier(2, "b", 3).empty());
  CHECK(f.get("b") == bytes("2"));
  CHECK(f.barrier(0, "b", 3) == stop);
  CHECK(f.woken == Ids{1, 2});
  CHECK(f.barrier(3, "b", 3) == stop);  // Later ones pass.
}

TEST_CASE("a barrier's first arrival wakes those who wait for its key", "[store]") {
  Fixture f;
  f.wait(1, {"b"});
  f.barrier(2, "b", 2);
  CHECK(f.woken == Ids{1});
  CHECK(f.store.waiting(2));
}

TEST_CASE("barriers are released by the count, also when ADD brings it there", "[store]") {
  Fixture f;
  f.barrier(1, "b", 3);
  f.barrier(2, "b", 5);
  f.set(0, "b", "no number");
  CHECK(f.woken.empty());
  f.set(0, "b", "2");
  CHECK(f.woken.empty());
  f.add(0, "b", 1);
  CHECK(f.woken == Ids{1});
  f.add(0, "b", 2);
  CHECK(f.woken == Ids{2});
  f.set(0, "b", "x");
  CHECK(f.barrier(1, "b", 2).empty());
  CHECK(!f.refused.empty());
}

TEST_CASE("a barrier given up counts, but is not answered", "[store]") {
  Fixture f;
  f.barrier(1, "b", 2);
  CHECK(f.ask(1, {.op = StoreOp::CancelWait}) == canceled);
  CHECK(f.barrier(2, "b", 2) == stop);
  CHECK(f.woken.empty());
}

TEST_CASE("clear leaves nothing of an attempt", "[store]") {
  Fixture f;
  f.set(0, "a", string(100'000, 'x'));
  f.push("q", "1");
  f.wait(1, {"b"});
  f.barrier(2, "c", 2);
  f.store.clear();
  CHECK(f.budget.used() == 0);
  CHECK(f.store.num_keys() == 0);
  f.set(0, "b", "1");
  CHECK(f.woken.empty());
  CHECK(f.ask(0, {.op = StoreOp::QueueLen, .key = "q"}) == i64(0));
}

TEST_CASE("all memory that was given back is free again", "[store]") {
  Fixture f;
  for (int i = 0; i < 1000; ++i) {
    const string key = "key" + std::to_string(i);
    f.wait(1, {key, "never"});
    f.set(0, key, string(static_cast<std::size_t>(i) * 40, 'x'));
    f.push(key, "item");
    f.pop(0, key);
    f.ask(0, {.op = StoreOp::Append, .key = key, .value = "more"});
    f.erase(key);
  }
  f.disconnect(1);
  CHECK(f.budget.used() == 0);

  // Beyond a size values lie in blocks of their own: there, and back.
  f.set(0, "grows", string(StoreValue::shared_bytes_min - 10, 'x'));
  f.ask(0, {.op = StoreOp::Append, .key = "grows", .value = "more than ten"});
  f.set(0, "shrinks", string(StoreValue::shared_bytes_min, 'x'));
  f.set(0, "shrinks", "two of them");
  f.set(0, "shrinks", "one");
  for (const char* key : {"grows", "shrinks"}) f.erase(key);
  CHECK(f.budget.used() == 0);
}

TEST_CASE("the memory budget refuses what is too much, and nothing else", "[store]") {
  Fixture f(10'000);
  f.set(0, "a", "1");
  f.set(0, "b", string(10'000, 'x'));
  CHECK(f.refused.find("memory_bytes_max") != string::npos);
  CHECK(f.check({"b"}) == not_ready);
  const std::size_t without = f.budget.used();
  f.push("q", string(10'000, 'x'));
  CHECK(!f.refused.empty());
  CHECK(f.budget.used() == without);
  CHECK(f.ask(0, {.op = StoreOp::QueueLen, .key = "q"}) == i64(0));
  std::vector<string> names;
  for (int i = 0; i < 100; ++i) names.push_back("key" + std::to_string(i));
  const std::size_t before = f.budget.used();
  f.wait(1, Keys(names.begin(), names.end()));
  CHECK(!f.refused.empty());
  CHECK(f.budget.used() == before);
  CHECK(f.get("a") == bytes("1"));
  CHECK(f.refused.empty());
}

TEST_CASE("what waits take is given back, whatever ends them", "[store]") {
  Fixture f;
  const Keys keys{"a", "b", "a"};
  CHECK(f.wait(0, keys).empty());
  const std::size_t first = f.store.wait_bytes();
  CHECK(first > 0);
  CHECK(f.wait(1, keys).empty());
  const std::size_t both = f.store.wait_bytes();
  CHECK(both < 2 * first);  // The keys are there once.
  SECTION("the keys come") {
    f.set(2, "a", "1");
    CHECK(f.store.wait_bytes() < both);
    f.set(2, "b", "1");
  }
  SECTION("a queue of that name is filled, emptied, and filled again") {
    f.push("a", "1");
    f.push("a", "2");
    f.pop(2, "a");
    f.pop(2, "a");
    f.set(2, "b", "1");
    f.push("a", "3");
    f.push("a", "4");
    f.set(2, "a", "1");
  }
  SECTION("they are given up, and the keys come and go") {
    f.ask(0, {.op = StoreOp::CancelWait});
    CHECK(f.store.wait_bytes() == first);
    f.disconnect(1);
    f.set(2, "a", "1");
    f.erase("a");
  }
  SECTION("a barrier's key is deleted") {
    f.barrier(0, "a", 3);
    f.erase("a");
    f.disconnect(0);
    f.disconnect(1);
  }
  SECTION("a new attempt begins") { f.store.clear(); }
  CHECK(f.store.wait_bytes() == 0);
  f.store.clear();
  CHECK(f.budget.used() == 0);
}

TEST_CASE("waits over their limit are refused and leave nothing", "[store]") {
  Fixture f(1u << 30, {.wait_bytes_max = 1'000});
  Keys many(100, "key");
  CHECK(f.wait(0, many).empty());
  CHECK(f.refused == "wait_bytes_max is used up by parked waits");
  const Keys keys{"a", "b", "c", "d", "e"};
  f.wait(0, keys);
  CHECK(f.refused == "wait_bytes_max is used up by parked waits");
  CHECK(f.store.wait_bytes() == 0);
  CHECK(f.budget.used() == 0);
  CHECK(f.wait(0, {"a"}).empty());
  CHECK(f.refused.empty());
  f.barrier(1, "b", 3);
  CHECK(f.refused.empty());
}

TEST_CASE("a reply that would be too large is refused before it is built", "[store]") {
  Fixture f(1u << 30, {.reply_bytes_max = 1'000'000});
  f.set(0, "a", string(100'000, 'x'));
  CHECK(f.list(0, StoreOp::MultiGet, Keys(9, "a")).size() == 9 * 100'008);
  CHECK(f.list(0, StoreOp::MultiGet, Keys(10, "a")).empty());
  CHECK(f.refused.find("MULTI_GET") != string::npos);
  for (char key = 'b'; key < 'f'; ++key) f.set(0, string(200'000, key), "");
  CHECK(f.ask(0, {.op = StoreOp::ListKeys}).size() > 4 * 200'000);
  f.set(0, string(200'000, 'f'), "");
  CHECK(f.ask(0, {.op = StoreOp::ListKeys}).empty());
  CHECK(f.refused.find("LIST_KEYS") != string::npos);
}

TEST_CASE("a value that is being sent does not change", "[store]") {
  Fixture f;
  const string large(100'000, 'x');
  f.set(0, "a", large);
  ReplyBuffer reply;
  Ids woken;
  f.store.handle(1, {.op = StoreOp::Get, .key = "a"}, reply, woken);
  f.ask(0, {.op = StoreOp::Append, .key = "a", .value = "more"});
  f.erase("a");
  CHECK(reply.text() == bytes(large));
}

TEST_CASE("a reply that is sent in any pieces arrives whole", "[store]") {
  Fixture f;
  f.set(0, "large", string(20'000, 'L'));
  f.set(0, "huge", string(300'000, 'H'));
  f.set(0, "small", "s");
  for (const std::size_t step : {1'000u, 7'777u, 100'000u, 1'000'000u}) {
    ReplyBuffer reply;
    Ids woken;
    const Keys keys{"small", "large", "small", "huge", "large", "", "small"};
    f.store.handle(1, {.op = StoreOp::MultiGet, .items = keys}, reply, woken);
    const string whole = reply.text();
    REQUIRE(whole.size() == reply.size());
    string sent;
    while (!reply.empty()) {
      std::vector<iovec> pieces(2);
      pieces.resize(reply.pieces(pieces.data(), pieces.size()));
      const string part(static_cast<char*>(pieces[0].iov_base), std::min(step, pieces[0].iov_len));
      sent += part;
      reply.consume(part.size());
      if (sent.size() + reply.size() != whole.size()) break;
    }
    CHECK(sent == whole);
  }
}
