// Each connection as a sequence of events that a test can make up: what came in, whether the socket
// takes more, which time it is. The loop that brings them is server.cpp's.
#include "rendezvous/store/store_sessions.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <utility>

#include "rendezvous/first_byte.h"
#include "rendezvous/random_id.h"
#include "rendezvous/store/access_list.h"
#include "rendezvous/time_text.h"
#include "rendezvous/wire/wire.h"

namespace ddprun::rendezvous {
namespace {

static_assert(store_op_last < tls_first_byte && store_op_last < plain_first_byte,
              "an agent would be taken for a client of the store");

constexpr std::size_t wakes_per_event_max = 1'024;
constexpr std::size_t large_input_bytes = 1u << 20;  // Of a large value, read per event.
constexpr std::size_t flush_bytes_min = 256u << 10;  // Replies are sent when this many are ready.

std::uint64_t random_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

WireLimits wire_limits(const ServerOptions& options) {
  return {.key_bytes_max = options.key_bytes_max,
          .value_bytes_max = options.value_bytes_max,
          .keys_per_request_max = options.keys_per_request_max,
          .request_bytes_max = options.request_bytes_max};
}

// Nothing of the handshake has a list; of one that is short the refusal can say what is missing.
WireLimits handshake_limits(const ServerOptions& options) {
  constexpr std::size_t keys_max = 16;
  const std::size_t bytes_max = options.unproved_bytes_max;
  return {.key_bytes_max = std::min(options.key_bytes_max, bytes_max),
          .value_bytes_max = std::min(options.value_bytes_max, bytes_max),
          .keys_per_request_max = std::min(options.keys_per_request_max, keys_max),
          .request_bytes_max = std::min(options.request_bytes_max, bytes_max)};
}

Strangers::Limits unproved_limits(const ServerOptions& options) {
  return {.total_max = options.unproved_max(),
          .per_host_max = options.unproved_per_address_max(),
          .time_max = options.strangers.time_max};
}

}  // namespace

StoreSessions::StoreSessions(const ServerOptions& options, int epoll_fd, Callbacks callbacks)
    : options_(options),
      limits_(wire_limits(options)),
      handshake_limits_(handshake_limits(options)),
      epoll_fd_(epoll_fd),
      callbacks_(std::move(callbacks)),
      budget_(options.memory_bytes_max),
      store_({.value_bytes_max = options.value_bytes_max,
              .reply_bytes_max = options.output_bytes_max,
              .wait_bytes_max = options.wait_bytes_max},
             budget_, random_seed()),
      strangers_(options.strangers),
      unproved_(unproved_limits(options)),
      input_(new char[input_bytes_max]) {
  store_.set_attempt({.name = {}, .nonce = random_id(8)});
}

StoreSessions::~StoreSessions() { close_all(); }

std::size_t StoreSessions::size_from(const asio::ip::address& from) const {
  const auto found = connections_from_.find(from);
  return found == connections_from_.end() ? 0 : found->second;
}

bool StoreSessions::permits(const asio::ip::address& from) const {
  return options_.store_access == nullptr || options_.store_access->permits(from);
}

void StoreSessions::add(UniqueFd fd, const asio::ip::address& from, Clock::time_point now) {
  ConnectionId id = static_cast<ConnectionId>(connections_.size());
  if (free_.empty()) {
    connections_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Slot& slot = connections_[id];
  ++slot.generation;
  slot.connection = std::make_unique<Connection>(options_.proves ? handshake_limits_ : limits_);
  slot.connection->fd = std::move(fd);
  slot.connection->from = from;
  ++connections_from_[from];
  epoll_event event{.events = EPOLLIN, .data = {.u64 = token_of(id)}};
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, slot.connection->fd.get(), &event) != 0) return close(id);
  // Clients of the store may be silent for as long as they like, where they need prove nothing:
  // torch 1.13 opens a second connection that it may never use.
  if (permits(from)) return await_proof(id, now);
  if (const auto oldest = strangers_.add(token_of(id), host_key(from), now)) {
    reset_silent(static_cast<ConnectionId>(*oldest), "it said nothing, and others came");
  }
}

void StoreSessions::recheck_access(Clock::time_point now) {
  for (ConnectionId id = 0; id < connections_.size(); ++id) {
    const Connection* connection = connections_[id].connection.get();
    if (connection == nullptr || permits(connection->from)) continue;
    if (connection->classified) {
      refuse(id, "its host has no part in this job any more");
      continue;
    }
    // May belong to an agent that has yet to speak.
    unproved_.remove(token_of(id));
    strangers_.remove(token_of(id));
    const auto oldest = strangers_.add(token_of(id), host_key(connection->from), now);
    if (oldest)
      reset_silent(static_cast<ConnectionId>(*oldest), "it said nothing, and others came");
  }
  deliver_wakes();
}

bool StoreSessions::on_event(std::uint64_t token, std::uint32_t events, Clock::time_point now) {
  if (find(token) == nullptr) return false;
  const auto id = static_cast<ConnectionId>(token);
  const bool open = (events & EPOLLOUT) == 0 || flush_tail(id);
  if (open && (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) on_readable(id, now);
  deliver_wakes();
  const Connection* connection = find(token);
  return connection != nullptr && connection->classified && !is_unproved(*connection);
}

void StoreSessions::on_readable(ConnectionId id, Clock::time_point now) {
  Connection& connection = *connections_[id].connection;
  const std::span<char> room = connection.parser.large_room();
  if (!room.empty()) return on_large_value(id, room, now);
  // Once a turn: who sends without end must not keep the others waiting. What is left makes epoll
  // report it again, as the set is level-triggered.
  const ssize_t size = ::recv(connection.fd.get(), input_.get(), input_bytes_max, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return close(id);  // Every complete command was carried out when it came.
  const std::string_view input(input_.get(), static_cast<std::size_t>(size));
  if (connection.classified || classify(id, input, now)) process(id, input, now);
}

// The middle of a large value is received where it is kept, and what follows it as usual.
void StoreSessions::on_large_value(ConnectionId id, std::span<char> room, Clock::time_point now) {
  Connection& connection = *connections_[id].connection;
  const std::size_t direct = std::min(room.size(), large_input_bytes);
  std::array<iovec, 2> parts{{{room.data(), direct}, {input_.get(), input_bytes_max}}};
  const int count = direct == room.size() ? 2 : 1;
  const ssize_t got = ::readv(connection.fd.get(), parts.data(), count);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return close(id);
  const auto size = static_cast<std::size_t>(got);
  connection.parser.received(std::min(size, direct));
  process(id, {input_.get(), size - std::min(size, direct)}, now);
}

// By the first byte. False: the connection is not ours any more.
bool StoreSessions::classify(ConnectionId id, std::string_view input, Clock::time_point now) {
  Connection& connection = *connections_[id].connection;
  connection.classified = true;
  strangers_.remove(token_of(id));
  if (begins_control(input.front())) {
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, connection.fd.get(), nullptr);
    UniqueFd fd = std::move(connection.fd);
    close(id);
    callbacks_.on_control(std::move(fd), std::string(input));
    return false;
  }
  if (connection.stale) {
    refuse(id, "it connected in an earlier attempt");
    return false;
  }
  if (!permits(connection.from)) {
    refuse(id,
           "its host has no part in this job: ddprun there joins it, torchrun does not "
           "(--store-allow lets in who needs the store alone)");
    return false;
  }
  await_proof(id, now);  // Its host may have become one of the job since it came.
  return true;
}

void StoreSessions::process(ConnectionId id, std::string_view input, Clock::time_point now) {
  Connection& connection = *connections_[id].connection;
  reply_.clear();
  if (std::exchange(connection.wake_pending, false)) reply_.put(wait_stopped);
  if (store_.waiting(id)) connection.parser.note_abandoned_wait(input);
  serve_all(id, input, now);
}

// Carries out every complete command of `input`, and sends reply_.
void StoreSessions::serve_all(ConnectionId id, std::string_view input, Clock::time_point now) {
  StoreParser& parser = connections_[id].connection->parser;
  ParseStatus status = parser.next(input);
  while (status == ParseStatus::Request) {
    connections_[id].connection->command_began.reset();
    if (!serve(id)) return;
    status = parser.next(input);
  }
  queue_wakes();
  if (!flush(id)) return;
  // The rest of a command may be long in coming, and its client takes no answer to a wait by now.
  if (store_.waiting(id) && (parser.mid_command() || parser.ambiguous())) store_.end_wait(id);
  if (status == ParseStatus::Bad) {
    const bool unproved = is_unproved(*connections_[id].connection);
    refuse(id, parser.bad_reason() +
                   (unproved ? ", before it has proved the job's key (--store-auth)" : ""));
  } else if (account(id)) {
    if (status == ParseStatus::Ambiguous) {
      ambiguous_.push_back({token_of(id), now + ambiguous_pause});
    }
    limit_half_command(id, now);
  }
}

// Carries out the request that the parser holds. False: the connection is closed.
bool StoreSessions::serve(ConnectionId id) {
  const Heard heard = connections_[id].connection->proved ? Heard::ForStore : hear_unproved(id);
  std::string refused;
  if (heard == Heard::ForStore) {
    refused = store_.handle(id, connections_[id].connection->parser.request(), reply_, woken_);
  } else if (heard == Heard::Refused) {
    refused = "it does not prove the job's key (--store-auth)";
  }
  if (!refused.empty()) {
    if (flush(id)) refuse(id, refused);
    return false;
  }
  return reply_.size() < flush_bytes_min || flush(id);
}

// A client that has proved nothing is served the handshake alone, and nobody is without
// --store-auth.
StoreSessions::Heard StoreSessions::hear_unproved(ConnectionId id) {
  Connection& connection = *connections_[id].connection;
  const StoreRequest& request = connection.parser.request();
  const bool compare_set = request.op == StoreOp::CompareSet;
  if (compare_set && request.key == challenge_key) {
    if (options_.proves && connection.challenge.empty()) connection.challenge = random_id(16);
    reply_.put_bytes(connection.challenge);
    return Heard::Answered;
  }
  if (!options_.proves) return Heard::ForStore;
  if (compare_set && request.key == proof_key) {
    // Once: what was wrong must not be tried again.
    const std::string challenge = std::exchange(connection.challenge, {});
    connection.proved =
        !challenge.empty() && options_.proves(store_proof_statement(challenge), request.desired);
    if (!connection.proved) return Heard::Refused;
    unproved_.remove(token_of(id));
    connection.parser.use_limits(limits_);
    reply_.put_bytes({});
    return Heard::Answered;
  }
  const bool handshake = request.op == StoreOp::Validate || request.op == StoreOp::Ping ||
                         (compare_set && request.key.starts_with(attempt_key_prefix));
  return handshake ? Heard::ForStore : Heard::Refused;
}

bool StoreSessions::is_unproved(const Connection& connection) const {
  return options_.proves && !connection.proved;
}

// Who comes from a host of the job is no stranger, and may all the same be another user's process.
// Nothing where no proof is asked for, or it is awaited already: a first byte wins no time.
void StoreSessions::await_proof(ConnectionId id, Clock::time_point now) {
  const Connection& connection = *connections_[id].connection;
  if (!is_unproved(connection) || unproved_.contains(token_of(id))) return;
  if (const auto oldest = unproved_.add(token_of(id), connection.from.to_string(), now)) {
    reset_silent(static_cast<ConnectionId>(*oldest),
                 "it has not proved the job's key (--store-auth), and others came");
  }
}

void StoreSessions::start_attempt(const std::string& name) {
  for (ConnectionId id = 0; id < connections_.size(); ++id) {
    Connection* connection = connections_[id].connection.get();
    if (connection == nullptr) continue;
    connection->stale = true;
    // The rest may be agents whose first byte has not come yet.
    if (connection->classified) close(id);
  }
  store_.clear();
  store_.set_attempt({.name = name, .nonce = random_id(8)});
  wakes_.clear();
  ambiguous_.clear();
  half_commands_.clear();
}

void StoreSessions::close_all() {
  for (ConnectionId id = 0; id < connections_.size(); ++id) {
    if (connections_[id].connection) close(id);
  }
}

StoreSessions::Connection* StoreSessions::find(std::uint64_t token) {
  const auto id = static_cast<ConnectionId>(token);
  if (id >= connections_.size() || token_of(id) != token) return nullptr;
  return connections_[id].connection.get();
}

std::uint64_t StoreSessions::token_of(ConnectionId id) const {
  return std::uint64_t{connections_[id].generation} << 32 | id;
}

void StoreSessions::refuse(ConnectionId id, const std::string& reason) {
  callbacks_.on_refused(connections_[id].connection->fd.get(), reason);
  close(id);
}

// There are no bytes under way that a reset would take from it, or none that matter. A usual end
// would leave the kernel a minute's memory of each, tens of thousands in a crowd.
void StoreSessions::reset_silent(ConnectionId id, const std::string& reason) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(connections_[id].connection->fd.get(), SOL_SOCKET, SO_LINGER, &at_once,
               sizeof at_once);
  refuse(id, reason);
}

void StoreSessions::close(ConnectionId id) {
  std::unique_ptr<Connection> connection = std::move(connections_[id].connection);
  strangers_.remove(token_of(id));
  unproved_.remove(token_of(id));
  // Not left to close(): a process just forked may still hold a copy of the descriptor.
  if (connection->fd.valid()) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, connection->fd.get(), nullptr);
  store_.disconnect(id, woken_);
  queue_wakes();
  budget_.give(connection->charged);
  const auto from = connections_from_.find(connection->from);
  if (--from->second == 0) connections_from_.erase(from);
  free_.push_back(id);
}

// ---- what goes out: replies, and the bytes that end the waits of others ----

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
  const bool unproved = is_unproved(connection);
  const std::size_t limit = unproved ? options_.unproved_bytes_max : options_.output_bytes_max;
  // Of a stranger's what is sent counts, too, as long as it is kept.
  const std::size_t held = unproved ? connection.tail->own_bytes() : connection.tail->size();
  if (held > limit) {
    refuse(id, "it does not read its replies: " + std::to_string(held) + " bytes wait, over " +
                   (unproved ? "unproved" : "output") + "_bytes_max = " + std::to_string(limit));
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

// ---- what must not last for ever: half a command, and one that only silence explains ----

StoreSessions::Clock::time_point StoreSessions::deadline() const {
  auto earliest = Clock::time_point::max();
  for (const std::deque<Due>* list : {&ambiguous_, &half_commands_}) {
    if (!list->empty()) earliest = std::min(earliest, list->front().deadline);
  }
  for (const Strangers* list : {&strangers_, &unproved_}) {
    earliest = std::min(earliest, list->deadline().value_or(earliest));
  }
  return earliest;
}

void StoreSessions::on_deadline(Clock::time_point now) {
  resolve_ambiguous(now);
  refuse_half_commands(now);
  refuse_silent(now);
  deliver_wakes();
}

void StoreSessions::resolve_ambiguous(Clock::time_point now) {
  while (!ambiguous_.empty() && ambiguous_.front().deadline <= now) {
    const std::uint64_t token = ambiguous_.front().token;
    ambiguous_.pop_front();
    Connection* connection = find(token);
    if (connection == nullptr || !connection->parser.ambiguous()) continue;
    connection->parser.resolve_as_delete();
    reply_.clear();
    const auto id = static_cast<ConnectionId>(token);
    if (serve(id)) serve_all(id, {}, now);
  }
}

void StoreSessions::refuse_silent(Clock::time_point now) {
  const std::string limit = time_text(options_.strangers.time_max);
  for (const std::uint64_t token : unproved_.take_due(now)) {
    reset_silent(static_cast<ConnectionId>(token),
                 "it has not proved the job's key (--store-auth) within " + limit);
  }
  for (const std::uint64_t token : strangers_.take_due(now)) {
    const auto id = static_cast<ConnectionId>(token);
    // Its agent may have joined by another connection since: then it may be a worker's.
    if (permits(connections_[id].connection->from)) {
      await_proof(id, now);
    } else {
      reset_silent(id, "nothing came from it for " + limit);
    }
  }
}

// What a command has sent so far is kept; its sender must not make that last for ever.
void StoreSessions::limit_half_command(ConnectionId id, Clock::time_point now) {
  Connection& connection = *connections_[id].connection;
  if (!connection.parser.mid_command()) {
    connection.command_began.reset();
  } else if (!connection.command_began) {
    connection.command_began = now;
    if (std::exchange(connection.limited, true)) return;
    half_commands_.push_back({token_of(id), now + options_.command_time_max});
  }
}

void StoreSessions::refuse_half_commands(Clock::time_point now) {
  while (!half_commands_.empty() && half_commands_.front().deadline <= now) {
    const std::uint64_t token = half_commands_.front().token;
    half_commands_.pop_front();
    Connection* connection = find(token);
    if (connection == nullptr) continue;
    connection->limited = false;
    if (!connection->command_began) continue;
    const auto id = static_cast<ConnectionId>(token);
    const auto due = *connection->command_began + options_.command_time_max;
    if (due <= now) {
      refuse(id, "the rest of its command did not come within command_time_max = " +
                     time_text(options_.command_time_max));
    } else {  // Another command than the one that was listed.
      connection->limited = true;
      half_commands_.push_back({token, due});
    }
  }
}

}  // namespace ddprun::rendezvous
