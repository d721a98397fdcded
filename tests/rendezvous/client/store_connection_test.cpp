// The client's socket while it is being connected: what the kernel and signals do to it.
#include "rendezvous/client/store_connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <thread>

#include "rendezvous/store/store_socket.h"
#include "rendezvous/wire/wire.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using ddprun::testing::message_of;
using ddprun::testing::patience;
using ddprun::testing::with_failing_calls;

namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Its queue holds one connection, and has it: the kernel drops who asks next, and lets them ask
// again after a second.
struct FullListener {
  FullListener() {
    sockaddr_in address = loopback(0);
    const auto* any = reinterpret_cast<const sockaddr*>(&address);
    REQUIRE(::bind(listener.get(), any, sizeof address) == 0);
    REQUIRE(::listen(listener.get(), 0) == 0);
    port = local_port(listener.get());
    address = loopback(port);
    REQUIRE(::connect(first.get(), any, sizeof address) == 0);
  }
  UniqueFd accept() const { return UniqueFd(::accept(listener.get(), nullptr, nullptr)); }
  bool has_one() const {
    pollfd entry{listener.get(), POLLIN, 0};
    return ::poll(&entry, 1, 1) == 1;
  }

  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd first{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port = 0;
};

// Whether somebody has asked for a connection to this port and was not answered.
bool somebody_waits(std::uint16_t port) {
  const std::string remote = fmt::format("0100007F:{:04X}", port), syn_sent = "02";
  std::ifstream table("/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, to, state;
    words >> number >> local >> to >> state;
    if (to == remote && state == syn_sent) return true;
  }
  return false;
}

// SIGUSR1 does nothing but interrupt.
struct Interrupting {
  Interrupting() {
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &nothing, &before);
  }
  ~Interrupting() { ::sigaction(SIGUSR1, &before, nullptr); }
  struct sigaction before {};
};

std::string read_to_end(const UniqueFd& fd) {
  std::string heard;
  char bytes[256];
  for (ssize_t got; (got = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0;) {
    heard.append(bytes, static_cast<std::size_t>(got));
  }
  return heard;
}

}  // namespace

TEST_CASE("a signal while it connects costs a client no connection", "[store_client]") {
  const FullListener listener;
  const Interrupting interrupting;
  const pthread_t client = ::pthread_self();
  auto store = std::async(std::launch::async, [&] {
    const auto limit = std::chrono::steady_clock::now() + patience(20s);
    const auto late = [&] { return std::chrono::steady_clock::now() > limit; };
    while (!somebody_waits(listener.port) && !late()) std::this_thread::yield();
    const UniqueFd first = listener.accept();
    while (!listener.has_one() && !late()) ::pthread_kill(client, SIGUSR1);
    if (late()) return std::string("nobody came");
    const UniqueFd connection = listener.accept();
    std::string answers;  // To PING, and the question for the attempt.
    put_number(answers, static_cast<std::uint32_t>(::getpid()));
    put_string(answers, "#1");
    ::send(connection.get(), answers.data(), answers.size(), MSG_NOSIGNAL);
    return read_to_end(connection);
  });

  {
    StoreConnection connection("127.0.0.1", listener.port, "rank 0");
    CHECK(connection.connect("", patience(20s)) == "#1");
  }

  // It has used the first connection that it got.
  CHECK(store.get().substr(0, 1) == std::string(1, static_cast<char>(StoreOp::Validate)));
}

TEST_CASE("a store at an IPv6 address is named so that its port can be told", "[store_client]") {
  // A port that was free a moment ago: nobody listens there, or no store does.
  const std::uint16_t port = local_port(listen_socket("127.0.0.1", 0).get());
  StoreConnection connection("::1", port, "rank 0");

  CHECK(connection.name() == fmt::format("[::1]:{}", port));
  CHECK(contains(message_of<StoreConnectionLost>([&] { connection.connect("", 0ms); }),
                 fmt::format("cannot connect to store [::1]:{} within", port)));
}

TEST_CASE("a process that may open no more files does not wait for its store", "[store_client]") {
  const UniqueFd listener = listen_socket("127.0.0.1", 0);
  StoreConnection connection("127.0.0.1", local_port(listener.get()), "rank 0");

  std::string text;
  const bool filtered = with_failing_calls({{.number = __NR_socket}}, EMFILE, [&] {
    text = message_of<StoreError>([&] { connection.connect("", 10min); });
  });
  if (!filtered) DDPRUN_SKIP("no system call can be made to fail here (seccomp)");
  CHECK(contains(text, "socket: Too many open files for 2 s"));
  CHECK(contains(text, "ulimit -n"));
}
