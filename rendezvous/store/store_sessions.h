// The open store connections: bytes in, requests to the Store, replies out.
//
//   epoll --> on_event(token) --recv--> StoreParser --> Store --> ReplyBuffer --send-->
//
// One read buffer and one reply buffer serve all connections: what is complete is parsed and
// answered in place, so an idle connection costs a descriptor and a few hundred bytes. Only a
// half-received command and replies that the socket did not take are kept per connection.
//
// Not thread-safe; no clock of its own, no logging: rendezvous/server.cpp has both.
#pragma once

#include <asio/ip/address.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/server_options.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_socket.h"

namespace ddprun::rendezvous {

class StoreSessions {
 public:
  using Clock = std::chrono::steady_clock;
  // How long the peer of an ambiguous command (StoreParser) must be silent.
  static constexpr std::chrono::milliseconds ambiguous_pause{100};
  // Read per event, large values apart: who sends without end has no more than this of each turn,
  // some tenths of a millisecond of small requests.
  static constexpr std::size_t input_bytes_max = 64u << 10;

  struct Callbacks {
    // A connection began with '{', or as TLS does: it is not ours any more. `received` holds what
    // it sent.
    std::function<void(UniqueFd fd, std::string received)> on_control;
    // A connection is closed for a fault of its own.
    std::function<void(int fd, const std::string& reason)> on_refused;
  };

  // Registers connections with `epoll_fd`, level-triggered; its events carry the token.
  StoreSessions(const ServerOptions& options, int epoll_fd, Callbacks callbacks);
  ~StoreSessions();
  StoreSessions(const StoreSessions&) = delete;
  StoreSessions& operator=(const StoreSessions&) = delete;

  // Takes a new connection, non-blocking, of a peer at `from`.
  void add(UniqueFd fd, const asio::ip::address& from = {}, Clock::time_point now = {});
  std::size_t size() const { return connections_.size() - free_.size(); }
  std::size_t strangers() const { return strangers_.size(); }  // Of those.
  // Of those as well: clients that have to prove the key and have not yet.
  std::size_t unproved() const { return unproved_.size(); }
  // Whether the store serves this address.
  bool permits(const asio::ip::address& from) const;
  std::size_t size_from(const asio::ip::address& from) const;  // Those of one address.

  // Who is served has changed: closes the connections of those who are not any more.
  void recheck_access(Clock::time_point now);

  // Something is ready on the connection of this token; an old token is ignored. Bounded work.
  // Whether it was for the store, of a client that is served, and the connection is still open:
  // more may follow.
  bool on_event(std::uint64_t token, std::uint32_t events, Clock::time_point now);

  // Releases that one event could not deliver (a key that thousands waited for).
  bool has_pending_wakes() const { return !wakes_.empty(); }
  void deliver_wakes();

  // The earliest moment at which on_deadline() has something to do; none: max().
  Clock::time_point deadline() const;
  void on_deadline(Clock::time_point now);

  // Closes every connection that has sent something. The others may belong to agents that have
  // yet to speak: they stay, but are closed if it is the store that they speak to.
  void start_attempt(const std::string& name = {});  // As Server's.
  void close_all();

  const Store& store() const { return store_; }
  std::size_t memory_bytes() const { return budget_.used(); }  // Of ServerOptions' total.

 private:
  struct Connection {
    explicit Connection(const WireLimits& limits) : parser(limits) {}
    UniqueFd fd;
    asio::ip::address from;
    StoreParser parser;
    std::unique_ptr<ReplyBuffer> tail;               // Replies that the socket did not take.
    std::size_t charged = 0;                         // Taken from the budget for parser and tail.
    bool classified = false;                         // Has sent its first byte.
    std::optional<Clock::time_point> command_began;  // Of one whose end has not come.
    bool limited = false;                            // Has an entry in half_commands_.
    bool stale = false;                              // Connected before the current attempt began.
    bool wake_pending = false;  // Must be sent the byte of an ended wait, before all else.
    bool wants_write = false;   // EPOLLOUT is armed.
    bool proved = false;        // That it has the workers' key, where that is asked for.
    std::string challenge;      // To be proved; empty: not asked for yet.
  };
  struct Slot {
    std::unique_ptr<Connection> connection;
    std::uint32_t generation = 0;  // Tells a token of an earlier connection in this slot.
  };
  struct Due {
    std::uint64_t token;
    Clock::time_point deadline;
  };

  Connection* find(std::uint64_t token);
  std::uint64_t token_of(ConnectionId id) const;
  void on_readable(ConnectionId id, Clock::time_point now);
  void on_large_value(ConnectionId id, std::span<char> room, Clock::time_point now);
  bool classify(ConnectionId id, std::string_view input, Clock::time_point now);
  void process(ConnectionId id, std::string_view input, Clock::time_point now);
  void serve_all(ConnectionId id, std::string_view input, Clock::time_point now);
  bool serve(ConnectionId id);
  enum class Heard { ForStore, Answered, Refused };
  Heard hear_unproved(ConnectionId id);
  bool is_unproved(const Connection& connection) const;
  void await_proof(ConnectionId id, Clock::time_point now);
  void refuse(ConnectionId id, const std::string& reason);
  void reset_silent(ConnectionId id, const std::string& reason);
  void close(ConnectionId id);
  // What goes out.
  bool flush(ConnectionId id);
  bool flush_tail(ConnectionId id);
  bool account(ConnectionId id);
  void queue_wakes();
  void want_write(ConnectionId id, bool wanted);
  // What must not last for ever.
  void resolve_ambiguous(Clock::time_point now);
  void refuse_silent(Clock::time_point now);
  void limit_half_command(ConnectionId id, Clock::time_point now);
  void refuse_half_commands(Clock::time_point now);

  const ServerOptions options_;
  const WireLimits limits_;
  const WireLimits handshake_limits_;  // Of clients that have to prove the key and have not yet.
  const int epoll_fd_;
  Callbacks callbacks_;
  MemoryBudget budget_;
  Store store_;
  std::vector<Slot> connections_;  // By ConnectionId.
  std::vector<ConnectionId> free_;
  std::map<asio::ip::address, std::size_t> connections_from_;
  Strangers strangers_;  // Tokens of connections that have sent nothing, from elsewhere.
  Strangers unproved_;   // Tokens of others that have to prove the key and have not yet.
  std::unique_ptr<char[]> input_;
  ReplyBuffer reply_;
  std::vector<ConnectionId> woken_;
  std::deque<std::uint64_t> wakes_;  // Tokens of connections with wake_pending.
  std::deque<Due> ambiguous_;        // By deadline.
  std::deque<Due> half_commands_;    // By deadline: commands whose end has not come.
};

}  // namespace ddprun::rendezvous
