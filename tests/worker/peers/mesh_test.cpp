// How ranks come to trust the connections between them: by a word from the store, or by the key
// that their launcher gave them.
#include "worker/peers/mesh.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstring>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "rendezvous/worker_key.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/patience.h"
#include "tests/testing/spaced_numbers.h"
#include "tests/worker/own_page.h"
#include "tests/worker/peers/letter_key.h"

using namespace ddprun::worker;
using namespace std::chrono_literals;
using ddprun::testing::patience;
namespace rendezvous = ddprun::rendezvous;

namespace {

// Ranks with these keys meet on loopback; what each ended with, "" if it has met all.
std::vector<std::string> meet(const std::vector<Key>& keys,
                              std::chrono::milliseconds limit = patience(20s)) {
  std::vector<Mesh> meshes;
  std::vector<PeerAddress> addresses;
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    meshes.emplace_back(static_cast<int>(rank), 7, "127.0.0.1", keys[rank]);
    addresses.push_back({.ip = "127.0.0.1",
                         .port = meshes.back().port(),
                         .secret = meshes.back().secret(),
                         .segment = {}});
  }
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::vector<std::vector<PeerSockets>> sockets(keys.size());
  std::vector<std::string> errors(keys.size());
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        sockets[rank] = meshes[rank].connect(addresses, deadline);
        // Each tells each its rank, over both channels.
        for (std::size_t peer = 0; peer < keys.size(); ++peer) {
          if (peer == rank) continue;
          for (const int fd : {sockets[rank][peer].data.get(), sockets[rank][peer].watch.get()}) {
            const char mine = static_cast<char>(rank);
            if (::send(fd, &mine, 1, MSG_NOSIGNAL) != 1) errors[rank] = "cannot send";
            char theirs = -1;
            pollfd polled{fd, POLLIN, 0};
            ::poll(&polled, 1, static_cast<int>(patience(20s).count()));
            if (::recv(fd, &theirs, 1, 0) != 1 || theirs != static_cast<char>(peer)) {
              errors[rank] = "another rank answers";
            }
          }
        }
      } catch (const CommunicatorError& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

struct SocketPair {
  SocketPair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    one = UniqueFd(ends[0]);
    other = UniqueFd(ends[1]);
  }
  UniqueFd one, other;
};

const std::string word(mesh_word_chars, 'w');
const MeshContact first_contact{.epoch = 7, .caller = 1, .callee = 0, .word = word};

std::string read_from(int fd) {
  std::string bytes(4096, '\0');
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}
void write_to(int fd, const std::string& bytes) {
  REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
}

}  // namespace

TEST_CASE("ranks with one key meet, and so do ranks without any", "[mesh]") {
  for (const Key& key : {key_of('a'), Key()}) {
    for (const std::string& error : meet(std::vector<Key>(5, key))) CHECK(error.empty());
  }
}

TEST_CASE("ranks whose data goes another way are connected for the watch alone", "[mesh]") {
  std::vector<Mesh> meshes;
  std::vector<PeerAddress> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    meshes.emplace_back(rank, 7, "127.0.0.1", key_of('a'), /*encrypts=*/false, Mesh::For::Watch);
    addresses.push_back({.ip = "127.0.0.1",
                         .port = meshes.back().port(),
                         .secret = meshes.back().secret(),
                         .segment = {}});
  }
  const auto deadline = std::chrono::steady_clock::now() + patience(20s);
  auto other =
      std::async(std::launch::async, [&] { return meshes[1].connect(addresses, deadline); });
  const std::vector<PeerSockets> called = meshes[0].connect(addresses, deadline);
  const std::vector<PeerSockets> caller = other.get();
  write_to(called[1].watch.get(), "word");
  pollfd polled{caller[0].watch.get(), POLLIN, 0};
  ::poll(&polled, 1, static_cast<int>(patience(20s).count()));
  CHECK(read_from(caller[0].watch.get()) == "word");
  CHECK_FALSE(called[1].data);
  CHECK_FALSE(caller[0].data);
}

TEST_CASE("hundreds of ranks may call before the first one is answered", "[mesh]") {
  constexpr int calls = 400;  // Two of each of 200 ranks.
  int waiting_max = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> waiting_max;
  if (waiting_max < calls) DDPRUN_SKIP("net.core.somaxconn lets fewer connections wait");
  const Mesh mesh(0, 7, "127.0.0.1", Key());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(mesh.port());
  std::vector<UniqueFd> callers;
  for (int i = 0; i < calls; ++i) {
    callers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::connect(callers.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    pollfd connected{callers.back().get(), POLLOUT, 0};
    INFO("call " << i);
    REQUIRE(::poll(&connected, 1, static_cast<int>(patience(10s).count())) == 1);
    REQUIRE((connected.revents & POLLERR) == 0);
  }
}

TEST_CASE("an address is the same text in programs of any locale", "[mesh]") {
  PeerAddress address{.ip = "127.0.0.1", .port = 29'500, .secret = "word", .segment = {}};
  address.segment.pid = 123'456;
  address.segment.bytes = 4'202'496;
  address.world_size = 1'024;
  const std::string plain = to_text(address);

  const ddprun::testing::SpacedNumbers locale;
  CHECK(to_text(address) == plain);
  const PeerAddress read = parse_peer_address(plain, 0);
  CHECK(read.port == 29'500);
  CHECK(read.segment.pid == 123'456);
  CHECK(read.segment.bytes == 4'202'496);
  CHECK(read.world_size == 1'024);
}

TEST_CASE("a rank whose address is of another version is named, and its words are not shown",
          "[mesh]") {
  const std::string known = to_text({.ip = "127.0.0.1", .secret = "word", .segment = {}});
  try {
    parse_peer_addresses({known, "9 \033[2J"}, 0);
    FAIL("it was taken");
  } catch (const CommunicatorError& error) {
    CHECK(std::string(error.what()).starts_with("rank 1 has an address"));
    CHECK(std::string(error.what()).find('\033') == std::string::npos);
  }
}

TEST_CASE("a rank that is not called yet says that it waits for others", "[mesh]") {
  const ddprun::testing::OwnPage page;
  Mesh first(0, 7, "127.0.0.1", nullptr), second(1, 7, "127.0.0.1", nullptr);
  const std::vector<PeerAddress> addresses = {
      {.ip = "127.0.0.1", .port = first.port(), .secret = first.secret(), .segment = {}},
      {.ip = "127.0.0.1", .port = second.port(), .secret = second.secret(), .segment = {}}};
  const auto deadline = std::chrono::steady_clock::now() + patience(60s);

  auto met = std::async(std::launch::async, [&] { return first.connect(addresses, deadline); });

  CHECK(page.comes_to_tell_of_a_wait());
  CHECK(bool(second.connect(addresses, deadline)[0].data));
  CHECK(bool(met.get()[1].data));
  CHECK_FALSE(page.tells_of_a_wait());
}

TEST_CASE("a peer to which there is no route yet is called again", "[mesh]") {
  Mesh first(0, 7, "127.0.0.1", nullptr), second(1, 7, "127.0.0.1", nullptr);
  const std::vector<PeerAddress> addresses = {
      {.ip = "127.0.0.1", .port = first.port(), .secret = first.secret(), .segment = {}},
      {.ip = "127.0.0.1", .port = second.port(), .secret = second.secret(), .segment = {}}};
  const auto now = std::chrono::steady_clock::now();

  SECTION("and met when there is one") {
    const auto deadline = now + patience(20s);
    auto called =
        std::async(std::launch::async, [&] { return first.connect(addresses, deadline); });
    // The first socket has this number, and the one that follows it another.
    const int next = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    ::close(next);
    std::vector<PeerSockets> met;
    const bool filtered = ddprun::testing::with_failing_calls(
        {{.number = __NR_connect, .argument = 0, .value = static_cast<std::uint32_t>(next)}},
        EHOSTUNREACH, [&] { met = second.connect(addresses, deadline); });
    if (!filtered) second.connect(addresses, deadline);
    CHECK(called.get()[1].data.get() >= 0);
    if (!filtered) DDPRUN_SKIP("no system call can be made to fail here (seccomp)");
    CHECK(met[0].watch.get() >= 0);
  }
  // Nothing: see with_failing_calls().
  const auto why_not = [&](std::chrono::steady_clock::time_point deadline, int interrupt_fd) {
    std::optional<std::string> text;
    ddprun::testing::with_failing_calls({{.number = __NR_connect}}, EHOSTUNREACH, [&] {
      try {
        second.connect(addresses, deadline, interrupt_fd);
        text = "met";
      } catch (const CommunicatorError& error) {
        text = error.what();
      }
    });
    return text;
  };
  SECTION("until the attempt is over") {
    const UniqueFd over(::eventfd(1, EFD_CLOEXEC));
    const auto text = why_not(now + patience(60s), over.get());
    if (!text) DDPRUN_SKIP("no system call can be made to fail here (seccomp)");
    CHECK(*text == "rank 1 stopped connecting to its peers: it was interrupted");
  }
  SECTION("or the time is up") {
    const auto text = why_not(now, -1);
    if (!text) DDPRUN_SKIP("no system call can be made to fail here (seccomp)");
    CHECK(*text == "rank 1 cannot connect to rank 0 at 127.0.0.1:" + std::to_string(first.port()) +
                       ": No route to host");
  }
}

TEST_CASE("who waits for a connection says to whom", "[mesh]") {
  // A listener whose queue is full drops what else comes, as a firewall does.
  Mesh second(1, 7, "127.0.0.1", nullptr);
  const UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in bound{};
  bound.sin_family = AF_INET;
  bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(bound);
  auto* const address = reinterpret_cast<sockaddr*>(&bound);
  REQUIRE(::bind(silent.get(), address, size) == 0);
  REQUIRE(::listen(silent.get(), 0) == 0);
  REQUIRE(::getsockname(silent.get(), address, &size) == 0);
  std::vector<UniqueFd> filling;
  for (int i = 0; i < 3; ++i) {
    filling.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::connect(filling.back().get(), address, size);
  }
  const auto port = ntohs(bound.sin_port);
  const std::vector<PeerAddress> addresses = {
      {.ip = "127.0.0.1", .port = port, .secret = "word", .segment = {}},
      {.ip = "127.0.0.1", .port = second.port(), .secret = second.secret(), .segment = {}}};
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  std::vector<std::string> said;
  const auto end_when_told = [&](std::chrono::milliseconds, const std::string& problem) {
    said.push_back(problem);
    if (said.size() == 2) CHECK(::eventfd_write(over.get(), 1) == 0);
  };
  const rendezvous::WaitWords words{.tell = end_when_told, .first = 1ms, .again = 1ms};
  const auto deadline = std::chrono::steady_clock::now() + patience(60s);

  SECTION("whom it calls") {
    CHECK_THROWS_AS(second.connect(addresses, deadline, over.get(), words), CommunicatorError);
    REQUIRE(said.size() >= 2);
    CHECK(said[0].starts_with("rank 0 does not answer at 127.0.0.1:" + std::to_string(port)));
  }
  SECTION("who is to call") {
    Mesh first(0, 7, "127.0.0.1", nullptr);
    CHECK_THROWS_AS(first.connect(addresses, deadline, over.get(), words), CommunicatorError);
    REQUIRE(said.size() >= 2);
    CHECK(said[1] == "no connection with rank(s) 1 yet");
  }
}

TEST_CASE("a rank with another key, or none, is named by those that cannot prove it theirs",
          "[mesh]") {
  // Passes in full: nobody else will call. Long enough for a greeting all the same.
  const auto limit = patience(250ms);
  for (const Key& other : {key_of('b'), Key()}) {
    const auto errors = meet({key_of('a'), other}, limit);
    INFO(errors[0] << "\n" << errors[1]);
    CHECK(errors[0].find("was not called by rank(s) 1") != std::string::npos);
    CHECK_FALSE(errors[1].empty());
  }
  const auto errors = meet({Key(), key_of('a')}, limit);
  INFO(errors[1]);
  CHECK(errors[1].find("rank 1 cannot connect to rank 0 at 127.0.0.1") != std::string::npos);
  CHECK(errors[1].find("another secret") != std::string::npos);
}

TEST_CASE("strangers in the way, with the published word too, hinder nobody", "[mesh]") {
  const Key key = key_of('a');
  Mesh first(0, 7, "127.0.0.1", key), second(1, 7, "127.0.0.1", key);
  const std::vector<PeerAddress> addresses = {
      {.ip = "127.0.0.1", .port = first.port(), .secret = first.secret(), .segment = {}},
      {.ip = "127.0.0.1", .port = second.port(), .secret = second.secret(), .segment = {}}};
  // It has read the store: it knows the word, and says it as a rank without a key would.
  Mesh stranger(1, 7, "127.0.0.1", nullptr);
  const auto soon = std::chrono::steady_clock::now() + patience(2s);
  std::string refused;
  std::thread liar([&] {
    try {
      auto sockets = stranger.connect(addresses, soon);
      pollfd polled{sockets[0].data.get(), POLLIN, 0};
      ::poll(&polled, 1, static_cast<int>(patience(20s).count()));
      char byte = 0;
      refused = ::recv(sockets[0].data.get(), &byte, 1, 0) <= 0 ? "closed" : "let in";
    } catch (const CommunicatorError& error) {
      refused = error.what();
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + patience(20s);
  auto met = std::async(std::launch::async, [&] { return first.connect(addresses, deadline); });
  liar.join();
  CHECK(refused == "closed");
  CHECK(bool(second.connect(addresses, deadline)[0].data));
  CHECK(bool(met.get()[1].data));
}

TEST_CASE("a greeting that was overheard admits nobody", "[mesh]") {
  const Key key = key_of('a');
  SocketPair pair;
  OutgoingGreeting caller(std::move(pair.one), first_contact, key);
  SocketPair tapped;
  IncomingGreeting callee(std::move(tapped.one), 7, 0, word, key);
  REQUIRE(caller.begin() == 0);
  const std::string hello = read_from(pair.other.get());
  write_to(tapped.other.get(), hello);
  REQUIRE(callee.go_on() == GreetingState::Waiting);
  write_to(pair.other.get(), read_from(tapped.other.get()));
  REQUIRE(caller.go_on() == GreetingState::Done);
  const std::string proof = read_from(pair.other.get());
  write_to(tapped.other.get(), proof);
  REQUIRE(callee.go_on() == GreetingState::Done);
  CHECK(callee.contact().caller == 1);
  CHECK((hello + proof).find(word) == std::string::npos);

  SocketPair again;
  IncomingGreeting other(std::move(again.one), 7, 0, word, key);
  write_to(again.other.get(), hello);
  REQUIRE(other.go_on() == GreetingState::Waiting);
  write_to(again.other.get(), proof);
  CHECK(other.go_on() == GreetingState::Failed);
}

TEST_CASE("16.1: a rank of an older term is turned away, with an attempt of the same number too",
          "[mesh]") {
  for (const Key& key : {key_of('a'), Key()}) {
    SocketPair pair;
    MeshContact old = first_contact;
    old.epoch = rendezvous::epoch_of(0, 7);
    OutgoingGreeting caller(std::move(pair.one), old, key);
    IncomingGreeting callee(std::move(pair.other), rendezvous::epoch_of(2, 7), 0, word, key);
    REQUIRE(caller.begin() == 0);
    CHECK(callee.go_on() == GreetingState::Failed);
    CHECK(callee.why() ==
          "rank 1 was turned away: it is in attempt 7 of term 0, and this is attempt 7 of term 2");
  }
}

TEST_CASE("16.1: who waits in vain for a rank of an older term says that it called", "[mesh]") {
  const Key key = key_of('a');
  Mesh current(0, rendezvous::epoch_of(1, 7), "127.0.0.1", key);
  Mesh late(1, rendezvous::epoch_of(0, 7), "127.0.0.1", key);
  std::vector<PeerAddress> addresses;
  for (const Mesh* mesh : {&current, &late}) {
    addresses.push_back(
        {.ip = "127.0.0.1", .port = mesh->port(), .secret = mesh->secret(), .segment = {}});
  }
  // Passes in full: nobody else will call.
  const auto deadline = std::chrono::steady_clock::now() + patience(250ms);
  const auto error_of = [&](Mesh& mesh) {
    try {
      mesh.connect(addresses, deadline);
    } catch (const CommunicatorError& error) {
      return std::string(error.what());
    }
    return std::string("it met them all");
  };
  auto refused = std::async(std::launch::async, [&] { return error_of(late); });
  const std::string waited = error_of(current);
  INFO(waited);
  CHECK(waited.find("was not called by rank(s) 1 in time; rank 1 was turned away: it is in attempt "
                    "7 of term 0, and this is attempt 7 of term 1") != waited.npos);
  const std::string told = refused.get();
  INFO(told);
  CHECK(told.find("or is not in attempt 7 of term 0") != told.npos);
}

TEST_CASE("an answer cannot be made of the caller's own words", "[mesh]") {
  const Key key = key_of('a');
  SocketPair pair, mirror;
  OutgoingGreeting caller(std::move(pair.one), first_contact, key);
  REQUIRE(caller.begin() == 0);
  const std::string hello = read_from(pair.other.get());
  // The caller listens, too, at its own rank: an attacker lets it answer itself.
  IncomingGreeting same(std::move(mirror.one), 7, 1, word, key);
  write_to(mirror.other.get(), hello);
  REQUIRE(same.go_on() == GreetingState::Waiting);
  write_to(pair.other.get(), read_from(mirror.other.get()));
  CHECK(caller.go_on() == GreetingState::Failed);
  CHECK(caller.why().find("does not have the job's secret") != std::string::npos);
}

TEST_CASE("every part of a contact is in its statement", "[mesh]") {
  const std::string one(mesh_word_chars, '1'), two(mesh_word_chars, '2');
  const auto statement = [&](const MeshContact& about, bool by_caller = true) {
    return mesh_statement(by_caller, about, one.data(), two.data());
  };
  const std::string text = statement(first_contact);
  CHECK(statement(first_contact, false) != text);
  CHECK(mesh_statement(true, first_contact, two.data(), one.data()) != text);
  MeshContact other = first_contact;
  other.epoch = 8;
  CHECK(statement(other) != text);
  other.epoch = rendezvous::epoch_of(1, 7);
  CHECK(statement(other) != text);
  other = first_contact;
  other.caller = 2;
  CHECK(statement(other) != text);
  other = first_contact;
  other.callee = 2;
  CHECK(statement(other) != text);
  other = first_contact;
  other.channel = MeshChannel::Watch;
  CHECK(statement(other) != text);
  other = first_contact;
  other.word = one;
  CHECK(statement(other) != text);
}

TEST_CASE("a key is handed over in a descriptor that only such a key can be", "[mesh]") {
  CHECK(rendezvous::handed_worker_key(std::nullopt) == nullptr);
  CHECK(rendezvous::handed_worker_key("") == nullptr);
  const auto fd = rendezvous::hand_over_key(rendezvous::SecretBytes::copy_of(std::string(32, 'a')));
  const Key key = rendezvous::handed_worker_key(std::to_string(fd.get()));
  REQUIRE(key);
  CHECK(key_of('a')->proves("a statement", key->prove("a statement")));
  CHECK_FALSE(key_of('b')->proves("a statement", key->prove("a statement")));
  CHECK_FALSE(key->proves("another", key->prove("a statement")));
  CHECK(::write(fd.get(), "x", 1) < 0);  // Sealed: no worker can change the others'.

  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  for (const std::string& wrong :
       {std::string("nine"), std::string("-1"), std::string("1000"), std::to_string(file.get())}) {
    CHECK_THROWS_AS(rendezvous::handed_worker_key(wrong), rendezvous::SecurityError);
  }
}
