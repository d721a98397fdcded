// Deadlines of store connections, with time as an argument.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store/store_sessions.h"
#include "rendezvous/wire/wire.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

// One client of a store that is driven by hand.
class HandDriven {
 public:
  HandDriven() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    client_ = UniqueFd(ends[0]);
    sessions_.add(UniqueFd(ends[1]));
  }

  // Sends, and lets the store see it at `now`.
  void send(std::string_view bytes) {
    const ssize_t sent = ::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    REQUIRE(sent == static_cast<ssize_t>(bytes.size()));
    epoll_event event;
    REQUIRE(::epoll_wait(epoll_.get(), &event, 1, 0) == 1);
    sessions_.on_event(event.data.u64, event.events, now);
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    if (sessions_.deadline() <= now) sessions_.on_deadline(now);
  }
  bool open() const { return sessions_.size() == 1; }
  bool has_deadline() const {
    return sessions_.deadline() != StoreSessions::Clock::time_point::max();
  }

  StoreSessions::Clock::time_point now{};
  std::string refused;

 private:
  ServerOptions options_{.command_time_max = 60s};
  UniqueFd epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  UniqueFd client_;
  StoreSessions sessions_{options_,
                          epoll_.get(),
                          {.on_control = [](UniqueFd, const std::string&) {},
                           .on_refused = [this](int, const std::string& why) { refused = why; }}};
};

std::string set_command() {
  std::string out(1, static_cast<char>(StoreOp::Set));
  put_string(out, "key");
  put_string(out, "value");
  return out;
}
const std::string store_hello{"\x00\xCE\xF7\x85\x3C", 5};

}  // namespace

TEST_CASE("a command may take its time, but not more", "[sessions]") {
  HandDriven client;
  client.send(store_hello);
  CHECK_FALSE(client.has_deadline());  // Silence between commands is nobody's fault.
  client.send(set_command().substr(0, 10));
  CHECK(client.has_deadline());
  client.pass(59s);
  client.send(set_command().substr(10, 1));  // Bytes that drip do not help.
  client.pass(999ms);
  CHECK(client.open());
  client.pass(1ms);

  CHECK_FALSE(client.open());
  CHECK(client.refused.find("command_time_max = 60 s") != std::string::npos);
  CHECK_FALSE(client.has_deadline());
}

TEST_CASE("each command has its own time", "[sessions]") {
  HandDriven client;
  const std::string half = set_command().substr(0, 10), rest = set_command().substr(10);
  client.send(store_hello + half);
  for (int i = 0; i < 5; ++i) {
    client.pass(40s);
    client.send(rest + half);
    CHECK(client.open());
  }
  client.pass(20s);  // The deadline of an earlier command.
  CHECK(client.open());
  client.pass(39'999ms);
  CHECK(client.open());
  client.pass(1ms);
  CHECK_FALSE(client.open());
}

TEST_CASE("a finished command leaves no deadline behind for long", "[sessions]") {
  HandDriven client;
  client.send(store_hello + set_command().substr(0, 10));
  client.send(set_command().substr(10));
  client.pass(60s);

  CHECK(client.open());
  CHECK_FALSE(client.has_deadline());
}
