#include "rendezvous/store_client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "rendezvous/store_connection.h"
#include "rendezvous/wire.h"

namespace ddprun::rendezvous {
namespace {

// After a wait that timed out the store must acknowledge the cancellation; a store that does not
// is gone.
constexpr std::chrono::milliseconds cancel_timeout{5'000};
constexpr std::size_t missing_keys_named_max = 16;
// Longer than any job; keeps deadlines within the clock's range.
constexpr StoreClient::Timeout timeout_max = std::chrono::hours(24 * 365);

void put_key(std::string& out, std::string_view key) {
  put_number<std::uint64_t>(out, key.size() + 1);
  out += '/';
  out += key;
}

std::string begin(StoreOp op) { return std::string(1, static_cast<char>(op)); }

std::string begin(StoreOp op, std::string_view key) {
  std::string request = begin(op);
  put_key(request, key);
  return request;
}

std::string begin(StoreOp op, std::span<const std::string> keys) {
  std::string request = begin(op);
  put_number<std::uint64_t>(request, keys.size());
  for (const std::string& key : keys) put_key(request, key);
  return request;
}

// "get('a')", for messages.
std::string call_text(const char* name, std::span<const std::string> keys) {
  std::string text = std::string(name) + "(";
  const std::size_t shown = std::min<std::size_t>(keys.size(), 4);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text.append("'").append(keys[i]).append("'");
  }
  if (shown < keys.size()) text += ", ... " + std::to_string(keys.size()) + " keys";
  return text + ")";
}

std::string call_text(const char* name, std::string_view key) {
  return std::string(name).append("('").append(key).append("')");
}

}  // namespace

// One request, one reply; the socket and its deadlines are StoreConnection's.
struct StoreClient::Impl {
  Impl(const std::string& host, std::uint16_t port, Timeout default_timeout)
      : connection(host, port, std::min(default_timeout, timeout_max)),
        timeout(std::min(default_timeout, timeout_max)) {}

  StoreConnection::Deadline deadline() const { return StoreConnection::Clock::now() + timeout; }

  void send(const std::string& request, const std::string& call) {
    connection.send(request, deadline(), call);
  }

  template <class Number>
  Number ask(const std::string& request, const std::string& call) {
    const auto until = deadline();
    connection.send(request, until, call);
    return connection.receive_number<Number>(until, call);
  }

  std::string ask_bytes(const std::string& request, const std::string& call) {
    const auto until = deadline();
    connection.send(request, until, call);
    return connection.receive_bytes(until, call);
  }

  void wait(std::span<const std::string> keys, Timeout limit, const std::string& call) {
    const auto until = StoreConnection::Clock::now() + limit;
    connection.send(begin(StoreOp::Wait, keys), until + cancel_timeout, call);
    if (connection.wait_readable(until, call)) {
      const auto answer = connection.receive_number<std::uint8_t>(until + cancel_timeout, call);
      if (answer == wait_stopped) return;
      connection.fail(call, "got the answer " + std::to_string(answer) + " to a wait");
    }
    if (cancel(call)) return;
    throw StoreTimeout(call + " on store " + connection.name() + ": timed out after " +
                       std::to_string(limit.count()) + " ms; missing: " + missing(keys, call));
  }

  // True if the keys came while the wait was being cancelled: the answers are then 0 and 1.
  bool cancel(const std::string& call) {
    const auto until = StoreConnection::Clock::now() + cancel_timeout;
    connection.send(begin(StoreOp::CancelWait), until, call);
    const auto first = connection.receive_number<std::uint8_t>(until, call);
    if (first == wait_canceled) return false;
    const auto second = connection.receive_number<std::uint8_t>(until, call);
    if (first == wait_stopped && second == wait_canceled) return true;
    connection.fail(call, "got the answers " + std::to_string(first) + " and " +
                              std::to_string(second) + " to the cancellation of a wait");
  }

  // One CHECK per key, sent together.
  std::string missing(std::span<const std::string> keys, const std::string& call) {
    const auto asked = keys.first(std::min(keys.size(), missing_keys_named_max));
    const auto until = StoreConnection::Clock::now() + cancel_timeout;
    std::string request;
    for (const std::string& key : asked) request += begin(StoreOp::Check, std::span(&key, 1));
    connection.send(request, until, call);
    std::string text;
    for (const std::string& key : asked) {
      if (connection.receive_number<std::uint8_t>(until, call) == check_ready) continue;
      text.append(text.empty() ? "'" : ", '").append(key).append("'");
    }
    if (asked.size() < keys.size()) {
      text += " (the first " + std::to_string(asked.size()) + " of " + std::to_string(keys.size()) +
              " keys were looked at)";
    }
    return text.empty() ? "none any more" : text;
  }

  StoreConnection connection;
  Timeout timeout;
};

StoreClient::StoreClient(const std::string& host, std::uint16_t port, Timeout timeout)
    : impl_(std::make_unique<Impl>(host, port, timeout)) {}
StoreClient::~StoreClient() = default;
StoreClient::StoreClient(StoreClient&&) noexcept = default;
StoreClient& StoreClient::operator=(StoreClient&&) noexcept = default;

void StoreClient::set(std::string_view key, std::string_view value) {
  std::string request = begin(StoreOp::Set, key);
  put_string(request, value);
  impl_->send(request, call_text("set", key));
}

std::string StoreClient::get(std::string_view key) {
  const std::string call = call_text("get", key);
  const std::string owned(key);
  impl_->wait(std::span(&owned, 1), impl_->timeout, call);
  return impl_->ask_bytes(begin(StoreOp::Get, key), call);
}

std::int64_t StoreClient::add(std::string_view key, std::int64_t delta) {
  std::string request = begin(StoreOp::Add, key);
  put_number(request, delta);
  return impl_->ask<std::int64_t>(request, call_text("add", key));
}

std::string StoreClient::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  std::string request = begin(StoreOp::CompareSet, key);
  put_string(request, expected);
  put_string(request, desired);
  return impl_->ask_bytes(request, call_text("compare_set", key));
}

bool StoreClient::check(std::span<const std::string> keys) {
  const std::string call = call_text("check", keys);
  const auto answer = impl_->ask<std::uint8_t>(begin(StoreOp::Check, keys), call);
  if (answer > check_not_ready) {
    impl_->connection.fail(call, "got the answer " + std::to_string(answer));
  }
  return answer == check_ready;
}

void StoreClient::wait(std::span<const std::string> keys) { wait(keys, impl_->timeout); }

void StoreClient::wait(std::span<const std::string> keys, Timeout timeout) {
  impl_->wait(keys, std::min(timeout, timeout_max), call_text("wait", keys));
}

bool StoreClient::delete_key(std::string_view key) {
  const std::string request = begin(StoreOp::DeleteKey, key);
  return impl_->ask<std::int64_t>(request, call_text("delete_key", key)) > 0;
}

std::int64_t StoreClient::num_keys() {
  return impl_->ask<std::int64_t>(begin(StoreOp::NumKeys), "num_keys()");
}

void StoreClient::append(std::string_view key, std::string_view value) {
  std::string request = begin(StoreOp::Append, key);
  put_string(request, value);
  impl_->send(request, call_text("append", key));
}

std::vector<std::string> StoreClient::multi_get(std::span<const std::string> keys) {
  const std::string call = call_text("multi_get", keys);
  impl_->wait(keys, impl_->timeout, call);
  const auto until = impl_->deadline();
  impl_->connection.send(begin(StoreOp::MultiGet, keys), until, call);
  std::vector<std::string> values;
  values.reserve(keys.size());
  while (values.size() < keys.size()) {
    values.push_back(impl_->connection.receive_bytes(until, call));
  }
  return values;
}

void StoreClient::multi_set(std::span<const std::string> keys,
                            std::span<const std::string> values) {
  const std::string call = call_text("multi_set", keys);
  if (keys.size() != values.size()) {
    throw StoreError(call + ": " + std::to_string(keys.size()) + " keys but " +
                     std::to_string(values.size()) + " values");
  }
  std::string request = begin(StoreOp::MultiSet);
  put_number<std::uint64_t>(request, keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    put_key(request, keys[i]);
    put_string(request, values[i]);
  }
  impl_->send(request, call);
}

std::string StoreClient::local_address() const { return impl_->connection.local_address(); }

}  // namespace ddprun::rendezvous
