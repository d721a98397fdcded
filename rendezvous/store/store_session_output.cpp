// What goes out on the store connections: replies, those that a socket did not take at once, and
// the bytes that end the waits of others.
#include <sys/epoll.h>

#include <utility>

#include "rendezvous/store/store_sessions.h"

namespace ddprun::rendezvous {
namespace {

// A key may release thousands; the others have their turn before the rest of them.
constexpr std::size_t wakes_per_event_max = 1'024;

}  // namespace

// Sends reply_, and keeps what the socket does not take. False: the connection is closed.
bool StoreSessions::flush(ConnectionId id) {
  Connection& connection = *connections_[id].connection;
  if (reply_.empty()) return true;
  if (!connection.tail) {
    const SendStatus status = send_some(connection.fd.get(), reply_);
    if (status == SendStatus::Done) return true;
    if (status == SendStatus::Failed) {
      close(id);
      return false;
    }
    connection.tail = std::make_unique<ReplyBuffer>();
    want_write(id, true);
  }
  connection.tail->take(reply_);
  if (connection.tail->size() > options_.output_bytes_max) {
    refuse(id,
           "it does not read its replies: " + std::to_string(connection.tail->size()) +
               " bytes wait, over output_bytes_max = " + std::to_string(options_.output_bytes_max));
    return false;
  }
  return account(id);
}

// The socket takes bytes again. False: the connection is closed.
bool StoreSessions::flush_tail(ConnectionId id) {
  Connection& connection = *connections_[id].connection;
  if (!connection.tail) return true;
  const SendStatus status = send_some(connection.fd.get(), *connection.tail);
  if (status == SendStatus::Failed) {
    close(id);
    return false;
  }
  if (status == SendStatus::Done) {
    connection.tail.reset();
    want_write(id, false);
  }
  return account(id);
}

// Charges what the connection holds. False: over the budget, the connection is closed.
bool StoreSessions::account(ConnectionId id) {
  Connection& connection = *connections_[id].connection;
  const std::size_t held =
      connection.parser.memory_bytes() + (connection.tail ? connection.tail->own_bytes() : 0);
  if (held == connection.charged) return true;
  if (!budget_.change(connection.charged, held)) {
    refuse(id, "memory_bytes_max is used up");
    return false;
  }
  connection.charged = held;
  return true;
}

void StoreSessions::queue_wakes() {
  for (const ConnectionId id : woken_) {
    connections_[id].connection->wake_pending = true;
    wakes_.push_back(token_of(id));
  }
  woken_.clear();
  if (!wakes_.empty()) deliver_wakes();
}

void StoreSessions::deliver_wakes() {
  for (std::size_t sent = 0; sent < wakes_per_event_max && !wakes_.empty(); ++sent) {
    const std::uint64_t token = wakes_.front();
    wakes_.pop_front();
    Connection* connection = find(token);
    if (connection == nullptr || !std::exchange(connection->wake_pending, false)) continue;
    reply_.clear();
    reply_.put(wait_stopped);
    flush(static_cast<ConnectionId>(token));
  }
}

void StoreSessions::want_write(ConnectionId id, bool wanted) {
  Connection& connection = *connections_[id].connection;
  if (connection.wants_write == wanted) return;
  connection.wants_write = wanted;
  epoll_event event{.events = EPOLLIN | (wanted ? EPOLLOUT : 0u), .data = {.u64 = token_of(id)}};
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, connection.fd.get(), &event);
}

}  // namespace ddprun::rendezvous
