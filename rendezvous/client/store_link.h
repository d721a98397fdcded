// A store connection that is made again when it breaks, and what may be sent again then
// (store_client.h says which calls those are).
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "rendezvous/client/store_connection.h"

namespace ddprun::rendezvous {

class StoreLink {
 public:
  using Deadline = StoreConnection::Deadline;

  // Connects. Throws StoreError.
  StoreLink(const std::string& host, std::uint16_t port, StoreClientOptions options);

  StoreConnection& connection() { return connection_; }
  const StoreConnection& connection() const { return connection_; }
  const StoreClientOptions& options() const { return options_; }
  const std::string& identity() const { return identity_; }

  // Sends a request that has no answer and may be carried out twice. It is kept until something is
  // answered.
  void post(const std::string& call, Deadline until, std::string_view request);

  // `exchange()` sends and receives on connection(), and may be done again from its beginning.
  template <class Exchange>
  auto repeat(const std::string& call, Deadline until, Exchange exchange) {
    for (int tries_left = tries_max;; --tries_left) {
      try {
        make_ready(call, until);
        auto answer = exchange();
        unconfirmed_.clear();
        return answer;
      } catch (const StoreConnectionLost&) {
        if (!worth_another(tries_left, until)) throw;
      }
    }
  }

  // `receive()` takes the answer of a request that must not be carried out twice.
  template <class Receive>
  auto once(const std::string& call, Deadline until, std::string_view request, Receive receive) {
    send_once(call, until, request);
    try {
      auto answer = receive();
      unconfirmed_.clear();
      return answer;
    } catch (const StoreConnectionLost& lost) {
      throw_uncertain(lost);
    }
  }

 private:
  static constexpr int tries_max = 3;  // Of one call: a store that refuses it will do so again.
  static constexpr std::size_t unconfirmed_bytes_max = 1u << 20;

  void make_ready(const std::string& call, Deadline until);
  void check_identity(const std::string& call, const std::string& identity);
  void send_once(const std::string& call, Deadline until, std::string_view request);
  bool worth_another(int tries_left, Deadline until) const;
  [[noreturn]] static void throw_uncertain(const StoreConnectionLost& lost);

  StoreConnection connection_;
  StoreClientOptions options_;
  std::string identity_;     // Of the store, and the attempt that it served at first.
  std::string over_;         // Why the attempt is over; empty: it is not known to be.
  std::string unconfirmed_;  // Sent since the last answer, to be sent again on a new connection.
};

}  // namespace ddprun::rendezvous
