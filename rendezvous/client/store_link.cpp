// What happens to a request when its connection breaks. The store has no transactions and answers
// carry no tag, so all depends on what may be carried out twice (the table in
// docs/store_protocol.md).
#include "rendezvous/client/store_link.h"

#include <utility>

#include "rendezvous/client/store_requests.h"
#include "rendezvous/wire/store_attempt.h"

namespace ddprun::rendezvous {

using std::chrono::milliseconds;

StoreLink::StoreLink(const std::string& host, std::uint16_t port, StoreClientOptions options)
    : connection_(host, port, options.hosted_by, options.prove, options.interrupt_fd),
      options_(std::move(options)) {
  check_identity("connect()",
                 connection_.connect(options_.attempt, options_.timeout, options_.connecting));
}

void StoreLink::post(const std::string& call, Deadline until, std::string_view request) {
  // A client that only sets would otherwise keep all that it ever sent.
  if (unconfirmed_.size() + request.size() > unconfirmed_bytes_max) {
    const std::string ping = confirm_request();
    repeat(call, until, [&] {
      connection_.send(ping, until, call);
      return connection_.receive_number<std::uint32_t>(until, call);
    });
  }
  const std::size_t before = unconfirmed_.size();
  for (int tries_left = tries_max;; --tries_left) {
    try {
      const bool fresh = !connection_.open();
      if (unconfirmed_.size() == before) unconfirmed_.append(request);
      make_ready(call, until);  // A new connection begins with all that is unconfirmed.
      if (!fresh) connection_.send(request, until, call);
      return;
    } catch (const StoreConnectionLost&) {
      if (worth_another(tries_left, until)) continue;
      // The caller is told that it failed: a later connection must not carry it out after all.
      unconfirmed_.resize(before);
      throw;
    } catch (const StoreError&) {
      unconfirmed_.resize(before);
      throw;
    }
  }
}

void StoreLink::make_ready(const std::string& call, Deadline until) {
  if (!over_.empty())
    throw StoreAttemptOver(call + " on store " + connection_.name() + ": " + over_);
  if (connection_.open() || options_.reconnect_timeout <= milliseconds(0)) return;
  const auto left = std::chrono::ceil<milliseconds>(until - StoreConnection::Clock::now());
  const auto limit = std::clamp(left, milliseconds(0), options_.reconnect_timeout);
  check_identity(call, connection_.connect(options_.attempt, limit));
  connection_.send(unconfirmed_, until, call);
}

void StoreLink::check_identity(const std::string& call, const std::string& identity) {
  if (identity_.empty()) {
    // A store without names for attempts answers "#" and a number.
    if (names_another_attempt(identity, options_.attempt)) {
      over_ = "it serves attempt " + identity.substr(0, identity.find('#')) +
              " of the job, and this process is of attempt " + options_.attempt;
    }
    identity_ = identity;
  } else if (identity != identity_) {
    over_ =
        "the connection broke, and the store that is there now serves another attempt of the "
        "job, or is another one: it calls itself " +
        identity + ", and was " + identity_;
  }
  if (over_.empty()) return;
  connection_.close();
  throw StoreAttemptOver(call + " on store " + connection_.name() + ": " + over_);
}

// When this returns, the last byte has been sent, once.
void StoreLink::send_once(const std::string& call, Deadline until, std::string_view request) {
  for (int tries_left = tries_max;; --tries_left) {
    try {
      // Better to find a dead connection now, when the request can still go over a new one: once
      // it is sent, nobody knows whether it was carried out.
      if (!connection_.idle() && options_.reconnect_timeout > milliseconds(0)) connection_.close();
      make_ready(call, until);
      connection_.send(request, until, call);
      return;
    } catch (const StoreConnectionLost&) {
      // A request whose end was not sent is not carried out.
      if (!worth_another(tries_left, until)) throw;
    }
  }
}

bool StoreLink::worth_another(int tries_left, Deadline until) const {
  return tries_left > 1 && options_.reconnect_timeout > milliseconds(0) &&
         StoreConnection::Clock::now() < until;
}

void StoreLink::throw_uncertain(const StoreConnectionLost& lost) {
  throw StoreUncertain(std::string(lost.what()) +
                       "; whether the store has carried it out is not known");
}

}  // namespace ddprun::rendezvous
