// Up to four clients that send any bytes, in any turns, cut in any way, and vanish at any moment:
// no crash, no more memory than the budget, and nothing left when all have gone.
//
// The input is a script: a byte says what happens to which client (see step()); what a client
// sends is a length byte and so many bytes.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/first_byte.h"
#include "rendezvous/store/store_sessions.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::rendezvous;
using ddprun::fuzz::require;

namespace {

// Low enough that short inputs reach them.
ServerOptions options() {
  ServerOptions options;
  options.key_bytes_max = 64;
  options.value_bytes_max = 1u << 20;  // More than `memory_bytes_max` holds.
  options.keys_per_request_max = 64;
  options.request_bytes_max = 2u << 20;
  options.output_bytes_max = 128u << 10;
  options.memory_bytes_max = 512u << 10;
  options.wait_bytes_max = 24u << 10;
  return options;
}

// Keys that were there when a wait on other keys was parked may be deleted, or their queues
// emptied, and are then only waited for: that is counted, but ends nobody's wait.
constexpr std::size_t wait_overdraft_max = 64u << 10;

class Clients {
 public:
  Clients()
      : epoll_(epoll_create1(EPOLL_CLOEXEC)),
        sessions_(options(), epoll_.get(),
                  {[](const UniqueFd&, const std::string& received) {
                     require(begins_control(received.front()),
                             "a store client was taken for an agent");
                   },
                   [](int, const std::string& reason) {
                     require(!reason.empty(), "closed without a reason");
                   }}) {}

  // Carries out the first step of the script and removes it.
  void step(std::string_view& script) {
    const auto code = static_cast<unsigned char>(script.front());
    script.remove_prefix(1);
    UniqueFd& client = clients_[code & 3];
    const unsigned what = code >> 2;
    if (what < 48) {
      send(client, script);
    } else if (what < 52) {
      client.reset();
    } else if (what < 56) {
      now_ += 2 * StoreSessions::ambiguous_pause;
      sessions_.on_deadline(now_);
    } else if (what < 58) {
      sessions_.start_attempt();
      require(sessions_.store().num_keys() == 0, "a new attempt begins with keys");
      // Of which parsers and replies of the old attempt were part.
      require(sessions_.memory_bytes() == 0, "a new attempt begins with memory taken");
    } else {
      read_all(client);
    }
    serve();
    require(sessions_.memory_bytes() <= options().memory_bytes_max, "the budget is overdrawn");
    require(sessions_.store().wait_bytes() <= options().wait_bytes_max + wait_overdraft_max,
            "waits take more than their share");
  }

  void leave() {
    for (UniqueFd& client : clients_) client.reset();
    serve();
    require(sessions_.size() == 0, "connections of clients that are gone stay open");
    require(sessions_.store().wait_bytes() == 0,
            "waits of clients that are gone are still counted");
    sessions_.start_attempt();
    require(sessions_.memory_bytes() == 0, "memory of clients that are gone stays taken");
  }

 private:
  void send(UniqueFd& client, std::string_view& script) {
    if (!client.valid()) client = connect();
    const std::size_t size = script.empty() ? 0 : static_cast<unsigned char>(script.front());
    if (!script.empty()) script.remove_prefix(1);
    const std::string_view bytes = script.substr(0, size);
    script.remove_prefix(bytes.size());
    ::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  UniqueFd connect() {
    std::array<int, 2> ends{-1, -1};
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0,
            "no socket pair");
    sessions_.add(UniqueFd(ends[1]));
    return UniqueFd(ends[0]);
  }

  static void read_all(const UniqueFd& client) {
    std::array<char, 65'536> buffer;
    while (client.valid() && ::recv(client.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
    }
  }

  // Until nothing more happens.
  void serve() {
    std::array<epoll_event, 8> events;
    for (int turn = 0;; ++turn) {
      require(turn < 10'000, "the sockets never come to rest");
      if (sessions_.has_pending_wakes()) sessions_.deliver_wakes();
      const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
      if (ready <= 0) return;
      for (int i = 0; i < ready; ++i) {
        sessions_.on_event(events[i].data.u64, events[i].events, now_);
      }
    }
  }

  UniqueFd epoll_;
  StoreSessions sessions_;
  std::array<UniqueFd, 4> clients_;
  StoreSessions::Clock::time_point now_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view script(reinterpret_cast<const char*>(data), size);
  Clients clients;
  while (!script.empty()) clients.step(script);
  clients.leave();
  return 0;
}
