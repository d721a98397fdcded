// Random operations of several clients, against the model: the store itself, our server over
// sockets, and PyTorch's own server where Python torch is installed. Every byte is compared.
#include "tests/rendezvous/store/store_model.h"

#include <sched.h>

#include <array>
#include <filesystem>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/store/store.h"
#include "tests/rendezvous/store/store_server_fixture.h"
#include "tests/testing/catch.h"
#include "tests/testing/process.h"

using namespace ddprun::rendezvous;
using namespace ddprun::rendezvous::testing;
using std::string;

namespace {

constexpr int clients = 5;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr unsigned core_sequences = 1'000;
#else
constexpr unsigned core_sequences = 8'000;
#endif

// What was done so far, for the message of a failure.
string describe(int client, const Operation& operation) {
  std::ostringstream out;
  out << "client " << client << ": " << store_op_name(operation.op) << ' ' << operation.key << " '"
      << operation.value.substr(0, 12) << "' '" << operation.desired.substr(0, 12) << "' "
      << operation.number;
  for (const string& item : operation.items) out << ' ' << item.substr(0, 12);
  out << '\n';
  return out.str();
}

// Parser and store without sockets, fed in pieces as a socket would.
class Core {
 public:
  explicit Core(unsigned seed) : random_(seed) {
    for (int i = 0; i < clients; ++i) connect(i);
  }
  StoreModel::Outcome connect(int client) {
    std::vector<ConnectionId> woken;
    store_.disconnect(static_cast<ConnectionId>(client), woken);
    parsers_[static_cast<std::size_t>(client)] = std::make_unique<StoreParser>(limits_);
    StoreModel::Outcome outcome;
    outcome.woken.assign(woken.begin(), woken.end());
    feed(client, validate, outcome);
    return outcome;
  }
  StoreModel::Outcome apply(int client, const Operation& operation) {
    StoreModel::Outcome outcome;
    string bytes = encode(operation);
    while (!bytes.empty()) {
      const string piece = bytes.substr(0, random_() % 2 == 0 ? bytes.size() : 1 + random_() % 40);
      feed(client, piece, outcome);
      bytes.erase(0, piece.size());
    }
    return outcome;
  }
  std::size_t memory() const { return budget_.used(); }
  void clear() { store_.clear(); }

 private:
  void feed(int client, const string& piece, StoreModel::Outcome& outcome) {
    std::string_view input(piece);
    StoreParser& parser = *parsers_[static_cast<std::size_t>(client)];
    while (parser.next(input) == ParseStatus::Request) {
      std::vector<ConnectionId> woken;
      ReplyBuffer reply;
      const auto id = static_cast<ConnectionId>(client);
      outcome.closed = !store_.handle(id, parser.request(), reply, woken).empty();
      outcome.reply += reply.text();
      outcome.woken.insert(outcome.woken.end(), woken.begin(), woken.end());
    }
  }

  std::minstd_rand random_;
  WireLimits limits_{.large_value_bytes = 4'000};
  MemoryBudget budget_{64u << 20};
  Store store_{{}, budget_, 7};
  std::array<std::unique_ptr<StoreParser>, clients> parsers_;
};

// Keeps this thread on one CPU: what it sends on several loopback connections arrives in that
// order, also when the machine is so busy that the kernel delivers it later.
class OneCpu {
 public:
  OneCpu() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneCpu() { sched_setaffinity(0, sizeof before_, &before_); }
  OneCpu(const OneCpu&) = delete;
  OneCpu& operator=(const OneCpu&) = delete;

 private:
  cpu_set_t before_{};
};

// A server at a port, and what is sent to it over sockets.
class Sockets {
 public:
  explicit Sockets(std::uint16_t port) : port_(port), sync_(port) {
    for (int i = 0; i < clients; ++i) fds_.emplace_back(port);
  }
  StoreModel::Outcome connect(int client, const StoreModel::Outcome& expected) {
    at(client) = RawClient(port_);
    settle();
    StoreModel::Outcome outcome;
    take_wakes(expected, outcome);
    return outcome;
  }
  // The answers that `expected` says are due, and anything that comes on top.
  StoreModel::Outcome apply(int client, const Operation& operation,
                            const StoreModel::Outcome& expected) {
    at(client).send(encode(operation));
    StoreModel::Outcome outcome;
    outcome.reply = at(client).read(expected.reply.size());
    take_wakes(expected, outcome);
    outcome.closed = expected.closed && at(client).closed();
    settle();
    for (int i = 0; i < clients; ++i) {
      if ((i == client && outcome.closed) || !at(i).readable(0)) continue;
      outcome.reply += " and client " + std::to_string(i) + " got: " + at(i).read(100, 0);
    }
    return outcome;
  }

 private:
  void take_wakes(const StoreModel::Outcome& expected, StoreModel::Outcome& outcome) {
    for (const int other : expected.woken) {
      if (at(other).read(1) == stop) outcome.woken.push_back(other);
    }
  }
  RawClient& at(int client) { return fds_[static_cast<std::size_t>(client)]; }
  // What was sent before has been carried out. Twice: the first may overtake another client's bytes
  // in one turn of the server's loop.
  void settle() const {
    sync_.sync();
    sync_.sync();
  }

  std::uint16_t port_;
  RawClient sync_;
  std::vector<RawClient> fds_;
};

// Who may do what next. torch's own server leaves a client that a push has woken on its list, and
// wakes no other if it does not pop; it answers a client that gave up a wait without CANCEL_WAIT;
// and its COMPARE_SET wakes those who wait for a key that does not come to exist. Such steps are
// left out for it.
bool stock_would_err(const StoreModel& model, int client, const Operation& operation) {
  if (model.waiting(client)) return operation.op != StoreOp::CancelWait;
  return operation.op == StoreOp::CompareSet && model.waited_for(operation.key);
}

template <class Apply, class Connect>
class Sequence {
 public:
  Sequence(unsigned seed, OperationMix mix, Apply apply, Connect connect)
      : seed_(seed), random_(seed), mix_(mix), apply_(apply), connect_(connect) {}

  void run(int steps) {
    for (int i = 0; i < steps && !failed_; ++i) step();
  }

 private:
  void step() {
    const int client = static_cast<int>(random_() % clients);
    if (random_() % 25 == 0) return reconnect(client);
    Operation operation = random_operation(random_, mix_);
    if (mix_.stock && stock_would_err(model_, client, operation)) {
      operation = {StoreOp::CancelWait};
    }
    const StoreModel::Outcome outcome = act(client, operation);
    if (outcome.closed) reconnect(client);
    if (!mix_.stock || operation.op != StoreOp::QueuePush) return;
    for (const int woken : outcome.woken) {
      act(woken, {StoreOp::QueuePop, operation.key});
      reconnect(woken);
    }
  }
  StoreModel::Outcome act(int client, const Operation& operation) {
    history_ += describe(client, operation);
    const StoreModel::Outcome expected = model_.apply(client, operation);
    StoreModel::Outcome got = apply_(client, operation, expected);
    if (operation.op == StoreOp::ListKeys) got.reply = sorted_list(got.reply);
    compare(got, expected);
    return expected;
  }
  void reconnect(int client) {
    history_ += "client " + std::to_string(client) + " connects again\n";
    const StoreModel::Outcome expected = model_.disconnect(client);
    compare(connect_(client, expected), expected);
  }
  void compare(const StoreModel::Outcome& got, const StoreModel::Outcome& expected) {
    if (got.reply == expected.reply && got.woken == expected.woken &&
        got.closed == expected.closed) {
      return;
    }
    failed_ = true;
    INFO("seed " << seed_ << '\n' << history_);
    CHECK(got.reply == expected.reply);
    CHECK(got.woken == expected.woken);
    CHECK(got.closed == expected.closed);
  }

  unsigned seed_;
  std::minstd_rand random_;
  OperationMix mix_;
  Apply apply_;
  Connect connect_;
  StoreModel model_;
  string history_;
  bool failed_ = false;
};

template <class Apply, class Connect>
void run_sequence(unsigned seed, int steps, OperationMix mix, Apply apply, Connect connect) {
  Sequence(seed, mix, apply, connect).run(steps);
}

void run_over_sockets(std::uint16_t port, unsigned seed, OperationMix mix) {
  const OneCpu one_cpu;
  Sockets sockets(port);
  run_sequence(
      seed, 60, mix,
      [&](int client, const Operation& operation, const StoreModel::Outcome& expected) {
        return sockets.apply(client, operation, expected);
      },
      [&](int client, const StoreModel::Outcome& expected) {
        return sockets.connect(client, expected);
      });
}

}  // namespace

TEST_CASE("the store does what the model does, in thousands of random sequences", "[model]") {
  for (unsigned seed = 1; seed <= core_sequences; ++seed) {
    Core core(seed);
    run_sequence(
        seed, 60, {},
        [&](int client, const Operation& operation, const StoreModel::Outcome&) {
          return core.apply(client, operation);
        },
        [&](int client, const StoreModel::Outcome&) { return core.connect(client); });
    core.clear();
    REQUIRE(core.memory() == 0);
  }
}

TEST_CASE("our server does what the model does, over sockets", "[model]") {
  ServerFixture f;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    f.run([&] { f.server->start_attempt(); });  // The model begins empty.
    run_over_sockets(f.port(), seed, {});
  }
}

TEST_CASE("our server does what torch's own server is asked below", "[model]") {
  ServerFixture f;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    f.run([&] { f.server->start_attempt(); });
    run_over_sockets(f.port(), seed, {.stock = true});
  }
}

TEST_CASE("torch's own server does what the model does, where it does what it should", "[model]") {
  if (!std::filesystem::exists(DDPRUN_PEER_PYTHON)) {
    DDPRUN_SKIP("no Python torch at " DDPRUN_PEER_PYTHON);
  }
  // One server for each sequence: there is no way to empty one.
  ddprun::testing::Process servers(
      {DDPRUN_PEER_PYTHON, "-W", "ignore", DDPRUN_STORE_ORACLE, "serve_many", "6"});
  REQUIRE(servers.wait_for_output("\nall\n", std::chrono::seconds(60)));
  std::istringstream ports(servers.output());
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::uint16_t port = 0;
    REQUIRE(ports >> port);
    run_over_sockets(port, seed, {.stock = true});
  }
}
