// Ranks that encrypt, with somebody between them who sees and may change all that they send.
#include <sys/socket.h>

#include <algorithm>
#include <asio.hpp>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "rendezvous/worker_key.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/peers/letter_key.h"
#include "worker/peers/mesh_greeting.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
namespace rendezvous = ddprun::rendezvous;
using asio::ip::tcp;
using ddprun::testing::contains;

namespace {

// What goes one way over one of the connections that rank 1 makes to rank 0.
struct Passing {
  int connection;  // 0: data, 1: watch.
  bool to_callee;
  std::size_t from;  // The first byte's place in the stream.
};
// May change what passes.
using Meddling = std::function<void(const Passing&, std::string& bytes)>;

// Stands between a rank and those that call it.
class Spy {
 public:
  explicit Spy(Meddling meddling = {})
      : meddling_(std::move(meddling)), acceptor_(io_, {asio::ip::address_v4::loopback(), 0}) {
    accept();
  }
  ~Spy() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  void begin(std::uint16_t callee) {
    callee_ = callee;
    thread_ = std::thread([this] { io_.run(); });
  }
  // All that has passed, to the end of every connection: a rank that has left has said goodbye, but
  // that may still be on its way here.
  std::string seen() {
    std::unique_lock lock(mutex_);
    CHECK(ended_.wait_for(lock, ddprun::testing::patience(20s), [&] { return ways_open_ == 0; }));
    return seen_;
  }

 private:
  struct Pair {
    explicit Pair(tcp::socket from) : caller(std::move(from)), callee(caller.get_executor()) {}
    tcp::socket caller, callee;
    std::size_t passed[2] = {};
  };

  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
      if (error) return;
      auto pair = std::make_shared<Pair>(std::move(socket));
      asio::error_code failed;
      pair->callee.connect({asio::ip::address_v4::loopback(), callee_}, failed);
      const int number = connections_++;
      {
        const std::lock_guard lock(mutex_);
        ways_open_ += 2;
      }
      pass(pair, number, true);
      pass(pair, number, false);
      accept();
    });
  }

  void pass(const std::shared_ptr<Pair>& pair, int number, bool to_callee) {
    auto buffer = std::make_shared<std::string>(65'536, '\0');
    (to_callee ? pair->caller : pair->callee)
        .async_read_some(asio::buffer(*buffer),
                         [this, pair, number, to_callee, buffer](const asio::error_code& error,
                                                                 std::size_t size) {
                           tcp::socket& to = to_callee ? pair->callee : pair->caller;
                           asio::error_code ignored;
                           if (error) {
                             to.shutdown(tcp::socket::shutdown_send, ignored);
                             const std::lock_guard lock(mutex_);
                             --ways_open_;
                             ended_.notify_all();
                             return;
                           }
                           buffer->resize(size);
                           std::size_t& passed = pair->passed[to_callee ? 0 : 1];
                           {
                             const std::lock_guard lock(mutex_);
                             seen_ += *buffer;
                           }
                           if (meddling_) meddling_({number, to_callee, passed}, *buffer);
                           passed += size;
                           asio::write(to, asio::buffer(*buffer), ignored);
                           pass(pair, number, to_callee);
                         });
  }

  Meddling meddling_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::uint16_t callee_ = 0;
  int connections_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  int ways_open_ = 0;
  std::string seen_;
  std::thread thread_;
};

// Rank 0 publishes the spy's port instead of its own.
class SpiedExchange : public MappedExchange {
 public:
  SpiedExchange(std::shared_ptr<Board> board, int rank, Spy* spy)
      : MappedExchange(std::move(board), rank), spy_(rank == 0 ? spy : nullptr) {}

  std::vector<std::string> all_gather(const std::string& mine,
                                      std::chrono::steady_clock::time_point deadline) override {
    if (spy_ == nullptr) return MappedExchange::all_gather(mine, deadline);
    PeerAddress address = parse_peer_address(mine, 0);
    spy_->begin(address.port);
    address.port = spy_->port();
    spy_ = nullptr;  // What is exchanged later is no address.
    return MappedExchange::all_gather(to_text(address), deadline);
  }

 private:
  Spy* spy_;
};

struct Ranks {
  std::vector<Key> keys = {key_of('a'), key_of('a')};
  std::vector<bool> encrypt = {true, true};
  Spy* spy = nullptr;
  std::chrono::milliseconds connect_timeout = 20s;
};

// What each rank ended with, "" if all went well.
std::vector<std::string> run_ranks(const Ranks& ranks,
                                   const std::function<void(Communicator&)>& body) {
  const int world = static_cast<int>(ranks.keys.size());
  const auto board = MappedExchange::create(world);
  std::vector<std::string> errors(ranks.keys.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.keys.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CpuCommunicatorOptions options;
        options.common.shared_memory = false;
        options.common.connect_timeout = ddprun::testing::patience(ranks.connect_timeout);
        options.common.collective_timeout = ddprun::testing::patience(20s);
        options.chunk_bytes = 4096;
        options.encrypt = ranks.encrypt[rank];
        options.key = ranks.keys[rank];
        SpiedExchange exchange(board, static_cast<int>(rank), ranks.spy);
        const auto comm =
            connect_cpu_communicator(static_cast<int>(rank), world, 0, exchange, options);
        body(*comm);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

constexpr std::string_view pattern = "GRADIENT-OF-LAYER-4-WEIGHT-------";

// All ranks hold a text that is easy to find; its bytes stay what they are under Max.
void reduce_text(Communicator& comm, std::size_t count = 300'000) {
  std::string text;
  while (text.size() < count) text += pattern;
  comm.all_reduce(text.data(), text.size(), DataType::UInt8, ReduceOp::Max);
}

// What a caller says before its first record: hello and proof.
constexpr std::size_t greeting_bytes = sizeof(MeshHello) + sizeof(rendezvous::KeyProof);

// From this piece on; a busy machine hands over the end of the greeting and the first record in
// one.
std::size_t greeting_left(const Passing& passing) {
  return greeting_bytes - std::min(greeting_bytes, passing.from);
}

// Sums whose result depends on their order: bits differ if anything else did.
std::vector<float> sums(bool encrypt, int world) {
  std::vector<float> result;
  std::mutex mutex;
  const auto count = static_cast<std::size_t>(world);
  Ranks ranks{.keys = std::vector<Key>(count, key_of('a')),
              .encrypt = std::vector<bool>(count, encrypt)};
  const auto errors = run_ranks(ranks, [&](Communicator& comm) {
    std::vector<float> data(100'003);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = 1.0f / static_cast<float>(i + 3 * static_cast<std::size_t>(comm.rank()) + 1);
    }
    comm.all_reduce(data.data(), data.size(), DataType::Float32, ReduceOp::Average);
    std::vector<float> message(70'001, 0.5f);
    const int next = (comm.rank() + 1) % comm.world_size();
    const int before = (comm.rank() + comm.world_size() - 1) % comm.world_size();
    std::vector<float> received(message.size());
    const auto incoming = comm.irecv(received.data(), received.size(), DataType::Float32, before);
    const auto outgoing = comm.isend(data.data(), received.size(), DataType::Float32, next);
    outgoing->wait();
    incoming->wait();
    const auto early = comm.isend(data.data(), received.size(), DataType::Float32, next);
    comm.barrier();
    std::vector<float> late(received.size());
    comm.recv(late.data(), late.size(), DataType::Float32, before);
    early->wait();
    comm.barrier();
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) {
      CHECK(contains(comm.description(), ", encrypted") == encrypt);
      result = data;
      result.insert(result.end(), received.begin(), received.end());
      result.insert(result.end(), late.begin(), late.end());
    }
  });
  for (const std::string& error : errors) CHECK(error.empty());
  return result;
}

}  // namespace

TEST_CASE("15.4: encrypted collectives and messages have the bits of plain ones", "[sealed]") {
  for (const int world : {2, 3}) {
    const auto plain = sums(false, world), encrypted = sums(true, world);
    REQUIRE(plain.size() == encrypted.size());
    CHECK(std::memcmp(plain.data(), encrypted.data(), plain.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("15.4: who sees all that two ranks send sees no gradient of those that encrypt",
          "[sealed]") {
  for (const bool encrypt : {false, true}) {
    Spy spy;
    const auto errors = run_ranks({.encrypt = {encrypt, encrypt}, .spy = &spy},
                                  [](Communicator& comm) { reduce_text(comm); });
    CHECK(errors == std::vector<std::string>(2));
    const std::string seen = spy.seen();
    CHECK(seen.size() > 600'000);
    CHECK(contains(seen, std::string(pattern.substr(0, 16))) == !encrypt);
    // Headers say what is called; those of the watch that a rank leaves.
    CHECK(contains(seen, "1PDD") == false);
    // Of what is encrypted one run in some thousands has four given bytes by chance.
    const auto holds = [&](const std::string& word) {
      const std::size_t first = seen.find(word);
      return first != seen.npos && (!encrypt || contains(seen.substr(first + 1), word));
    };
    CHECK(holds("DDP2") == !encrypt);
    CHECK(holds("DDPW") == !encrypt);
  }
}

TEST_CASE("15.4: one bit changed on the way ends the job, and the peer is named", "[sealed]") {
  // Far behind the greeting, and in either direction.
  for (const bool to_callee : {true, false}) {
    std::atomic<bool> changed{false};
    Spy spy([&](const Passing& passing, std::string& bytes) {
      constexpr std::size_t place = 20'000;
      if (passing.connection != 0 || passing.to_callee != to_callee || passing.from > place ||
          passing.from + bytes.size() <= place) {
        return;
      }
      bytes[place - passing.from] = static_cast<char>(bytes[place - passing.from] ^ 4);
      changed = true;
    });
    std::atomic<int> finished{0};
    const auto errors = run_ranks({.spy = &spy}, [&](Communicator& comm) {
      reduce_text(comm);
      ++finished;
    });
    INFO(errors[0] << "\n" << errors[1]);
    CHECK(changed);
    CHECK(finished < 2);
    const std::size_t receiver = to_callee ? 0 : 1;
    CHECK(contains(errors[receiver], "the connection from rank " + std::to_string(1 - receiver)));
    CHECK(contains(errors[receiver], "did not seal"));
    CHECK_FALSE(errors[1 - receiver].empty());
  }
}

TEST_CASE("15.4: an abort that somebody else makes up is not believed", "[sealed]") {
  std::atomic<bool> forged{false};
  Spy spy([&](const Passing& passing, std::string& bytes) {
    if (passing.connection != 1 || !passing.to_callee || forged) return;
    const std::size_t greeting = greeting_left(passing);
    if (bytes.size() < greeting) return;
    struct {
      char magic[4] = {'D', 'D', 'P', 'W'};
      std::uint32_t kind = 2, size = 6;
      char text[6] = {'f', 'o', 'r', 'g', 'e', 'd'};
    } abort;
    bytes.insert(greeting, reinterpret_cast<const char*>(&abort), 18);
    forged = true;
  });
  const auto errors = run_ranks({.spy = &spy}, [&](Communicator& comm) {
    reduce_text(comm);
    if (comm.rank() == 1) throw std::runtime_error("done");  // Its watch says so.
    comm.barrier();
  });
  INFO(errors[0]);
  CHECK(forged);
  CHECK(contains(errors[0], "the connection from rank 1"));
  CHECK(contains(errors[0], "did not seal"));
  CHECK_FALSE(contains(errors[0], "forged"));
}

TEST_CASE("15.4: records that come in another order are refused", "[sealed]") {
  // Two small messages are two records; the spy puts the second before the first.
  std::string kept;
  std::atomic<bool> swapped{false};
  std::mutex mutex;
  Spy spy([&](const Passing& passing, std::string& bytes) {
    if (passing.connection != 0 || !passing.to_callee) return;
    const std::lock_guard lock(mutex);
    const std::size_t greeting = std::min(bytes.size(), greeting_left(passing));
    kept += bytes.substr(greeting);
    bytes.resize(greeting);
    constexpr std::size_t record = 4 + 56 + 8 + 16;  // Head, frame header, payload, tag.
    if (kept.size() < 2 * record) return;
    bytes += kept.substr(record, record) + kept.substr(0, record) + kept.substr(2 * record);
    kept.clear();
    swapped = true;
  });
  const auto errors = run_ranks({.spy = &spy}, [](Communicator& comm) {
    std::int64_t one = 1, two = 2;
    if (comm.rank() == 1) {
      comm.send(&one, 1, DataType::Int64, 0);
      comm.send(&two, 1, DataType::Int64, 0);
    } else {
      comm.recv(&one, 1, DataType::Int64, 1);
      comm.recv(&two, 1, DataType::Int64, 1);
    }
    comm.barrier();
  });
  INFO(errors[0]);
  CHECK(swapped);
  CHECK(contains(errors[0], "the connection from rank 1"));
  CHECK(contains(errors[0], "did not seal"));
}

TEST_CASE("15.4: ranks that encrypt meet none with another key, and say who does not encrypt",
          "[sealed]") {
  const auto wrong = run_ranks({.keys = {key_of('a'), key_of('b')}, .connect_timeout = 500ms},
                               [](Communicator&) {});
  INFO(wrong[0] << "\n" << wrong[1]);
  CHECK_FALSE(wrong[0].empty());
  CHECK(contains(wrong[1], "what answers there does not have the job's secret"));

  const auto mixed = run_ranks({.encrypt = {true, false}}, [](Communicator&) {});
  INFO(mixed[0] << "\n" << mixed[1]);
  CHECK(contains(mixed[0], "rank 0 encrypts the gradients, and rank 1 does not encrypt"));
  CHECK(contains(mixed[1], "rank 1 does not encrypt the gradients, and rank 0 encrypts"));
  CHECK(contains(mixed[1], "--encrypt-gradients on all nodes"));

  const auto keyless = run_ranks({.keys = {Key(), Key()}}, [](Communicator&) {});
  CHECK(contains(keyless[0], "is to encrypt the gradients and has no key"));
}

TEST_CASE(
    "15.4: a connection that was recorded admits nobody and gives nothing when it is replayed",
    "[sealed]") {
  const Key key = key_of('a');
  const std::string word(mesh_word_chars, 'w');
  const MeshContact contact{.epoch = 7, .caller = 1, .callee = 0, .word = word, .sealed = true};
  const auto connect = [&](int fds[2]) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
  };
  const auto take_all = [](int fd) {
    std::string bytes(8192, '\0');
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  };
  const auto put = [](int fd, const std::string& bytes) {
    REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  };
  int calling[2], called[2];
  connect(calling);
  connect(called);
  const UniqueFd tap_calling(calling[1]), tap_called(called[1]);
  OutgoingGreeting caller(UniqueFd(calling[0]), contact, key);
  IncomingGreeting callee(UniqueFd(called[0]), 7, 0, word, key, true);
  REQUIRE(caller.begin() == 0);
  const std::string hello = take_all(calling[1]);
  put(called[1], hello);
  REQUIRE(callee.go_on() == GreetingState::Waiting);
  put(calling[1], take_all(called[1]));
  REQUIRE(caller.go_on() == GreetingState::Done);
  const std::string proof = take_all(calling[1]);
  put(called[1], proof);
  REQUIRE(callee.go_on() == GreetingState::Done);
  PeerLink from = caller.take(), to = callee.take();
  char text[] = "gradient";
  iovec part{text, sizeof text};
  REQUIRE(from.send(&part, 1) == static_cast<ssize_t>(sizeof text));
  const std::string record = take_all(calling[1]);
  CHECK_FALSE(contains(record, "gradient"));
  put(called[1], record);
  char got[sizeof text] = {};
  REQUIRE(to.receive(got, sizeof got) == static_cast<ssize_t>(sizeof got));
  CHECK(std::string(got) == text);

  // The same record once more.
  put(called[1], record);
  errno = 0;
  CHECK(to.receive(got, sizeof got) == -1);
  CHECK(errno == EBADMSG);
  // And all of it to the same rank, which has a new key of its own by now.
  int again[2];
  connect(again);
  const UniqueFd tap_again(again[1]);
  IncomingGreeting other(UniqueFd(again[0]), 7, 0, word, key, true);
  put(again[1], hello);
  REQUIRE(other.go_on() == GreetingState::Waiting);
  put(again[1], proof + record);
  CHECK(other.go_on() == GreetingState::Failed);
  // A greeting without encryption is not taken for one with, nor the other way round.
  int plain[2];
  connect(plain);
  const UniqueFd tap_plain(plain[1]);
  IncomingGreeting unsealed(UniqueFd(plain[0]), 7, 0, word, key);
  put(plain[1], hello);
  CHECK(unsealed.go_on() == GreetingState::Failed);
  MeshContact other_kind = contact;
  other_kind.sealed = false;
  const std::string nonce(mesh_word_chars, 'n');
  CHECK(mesh_statement(true, contact, nonce.data(), nonce.data()) !=
        mesh_statement(true, other_kind, nonce.data(), nonce.data()));
}

TEST_CASE("15.4: bytes that a full socket does not take go later, each once", "[sealed]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const auto key = [](char letter) {
    return rendezvous::SecretBytes::copy_of(std::string(32, letter));
  };
  PeerLink one(UniqueFd(ends[0]), rendezvous::RecordSealer(key('1')),
               rendezvous::RecordOpener(key('2')));
  PeerLink two(UniqueFd(ends[1]), rendezvous::RecordSealer(key('2')),
               rendezvous::RecordOpener(key('1')));
  std::string sent(3'000'001, '\0');
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 2654435761u >> 13);
  std::string received;
  std::size_t gone = 0;
  std::size_t wanted = 1;
  while (received.size() < sent.size()) {
    while (gone < sent.size()) {
      iovec part{sent.data() + gone, sent.size() - gone};
      const ssize_t some = one.send(&part, 1);
      if (some < 0) {
        REQUIRE(errno == EAGAIN);
        break;
      }
      gone += static_cast<std::size_t>(some);
    }
    // Of all sizes: parts of a record, several of them, and just one.
    std::string some(wanted, '\0');
    wanted = wanted * 3 % 150'001;
    const ssize_t got = two.receive(some.data(), some.size());
    if (got < 0) REQUIRE(errno == EAGAIN);
    if (got > 0) received.append(some, 0, static_cast<std::size_t>(got));
  }
  CHECK(received == sent);
  CHECK_FALSE(two.has_opened());

  // Whole messages, of which nobody has read any yet, are neither torn nor mixed.
  int taken = 0;
  std::string message(2000, 'm');
  for (int i = 0; i < 1000; ++i) {
    iovec part{message.data(), message.size()};
    if (one.send_message(&part, 1) == 0) ++taken;
  }
  CHECK(taken < 1000);
  std::size_t bytes = 0;
  for (;;) {
    std::string some(5000, '\0');
    const ssize_t got = two.receive(some.data(), some.size());
    if (got <= 0) {
      REQUIRE(errno == EAGAIN);
      iovec part{message.data(), message.size()};
      if (bytes >= static_cast<std::size_t>(taken) * message.size()) break;
      REQUIRE(one.send_message(&part, 1) == 0);  // Takes the torn one along.
      ++taken;
      continue;
    }
    bytes += static_cast<std::size_t>(got);
  }
  CHECK(bytes == static_cast<std::size_t>(taken) * message.size());
}

TEST_CASE("15.4: who asks for encryption over NCCL or MPI is refused", "[sealed]") {
  WorkerEnv env;
  env.world_size = 2;
  env.encrypt_gradients = true;
  const auto refusal = [&](auto make) {
    return ddprun::testing::message_of<CommunicatorError>(
        [&] { make(env, CommunicatorOptions{}); });
  };
  CHECK(contains(refusal(make_nccl_communicator), "NCCL carries them"));
  CHECK(contains(refusal(make_mpi_communicator), "MPI carries them"));
}
