// The calls of StoreClient: which requests each one is made of, and which of them may be sent again
// when the connection breaks under them. How it is made again is StoreLink's.
#include "rendezvous/store_client.h"

#include <algorithm>
#include <utility>

#include "rendezvous/client/store_link.h"
#include "rendezvous/client/store_release.h"
#include "rendezvous/client/store_requests.h"

namespace ddprun::rendezvous {
namespace {

using Deadline = StoreConnection::Deadline;

// Longer than any job; keeps deadlines within the clock's range.
constexpr StoreClient::Timeout timeout_max = std::chrono::hours(24 * 365);
constexpr std::size_t large_bytes = 64u << 10;  // Such a value is sent from where it lies.
// Of one request; torch's servers take 131,072 keys.
constexpr std::size_t keys_per_wait = 65'536, keys_per_get = 4'096, pairs_per_set = 16'384;
constexpr std::size_t set_bytes = 4u << 20;

using Keys = std::span<const std::string>;

}  // namespace

struct StoreClient::Impl {
  Impl(const std::string& host, std::uint16_t port, StoreClientOptions options)
      : link(host, port, bounded(std::move(options))), connection(link.connection()) {}

  static StoreClientOptions bounded(StoreClientOptions options) {
    options.timeout = std::min(options.timeout, timeout_max);
    options.reconnect_timeout = std::min(options.reconnect_timeout, timeout_max);
    return options;
  }
  Timeout limit_of(const Limit& limit) const {
    return std::min(limit.value_or(link.options().timeout), timeout_max);
  }
  Deadline deadline(const Limit& limit) const {
    return StoreConnection::Clock::now() + limit_of(limit);
  }

  template <class Number>
  Number ask(const std::string& call, const std::string& bytes, const Limit& limit) {
    const auto until = deadline(limit);
    return link.repeat(call, until, [&] {
      connection.send(bytes, until, call);
      return connection.receive_number<Number>(until, call);
    });
  }
  template <class Number>
  Number ask_once(const std::string& call, const std::string& bytes, const Limit& limit) {
    const auto until = deadline(limit);
    return link.once(call, until, bytes,
                     [&] { return connection.receive_number<Number>(until, call); });
  }

  // Several requests without an answer, sent by `send(until)`; the store has them when it returns.
  template <class Send>
  void confirm(const std::string& call, const Limit& limit, Send send) {
    const auto until = deadline(limit);
    link.repeat(call, until, [&] {
      send(until);
      connection.send(confirm_request(), until, call);
      return confirmation(until, call);
    });
  }
  bool confirmation(Deadline until, const std::string& call) {
    if (connection.receive_number<std::uint32_t>(until, call) == confirm_nonce) return true;
    connection.fail(call, "got a garbled answer");
  }

  // The end of a request: `head`, then a value that is not copied.
  void send_with(std::string& head, std::string_view value, Deadline until,
                 const std::string& call) {
    put_number<std::uint64_t>(head, value.size());
    if (value.size() < large_bytes) {
      head.append(value);
      return;
    }
    connection.send(head, until, call);
    connection.send(value, until, call);
    head.clear();
  }

  void wait(Keys keys, const std::string& call, const Limit& limit, Deadline until) {
    do {
      // One part after the other is as good as all at once: the last key decides when it ends.
      const Keys part = keys.first(std::min(keys.size(), keys_per_wait));
      keys = keys.subspan(part.size());
      link.repeat(call, until, [&] {
        connection.send(request(StoreOp::Wait, part), until + cancel_timeout, call);
        return receive_release(connection, part, call, limit_of(limit), until);
      });
    } while (!keys.empty());
  }

  // While one part is answered the next is on its way.
  std::vector<std::string> get_all(Keys keys, const std::string& call, Deadline until) {
    std::vector<std::string> values;
    values.reserve(keys.size());
    for (std::size_t sent = 0; values.size() < keys.size();) {
      while (sent < keys.size() && sent - values.size() <= keys_per_get) {
        const Keys part = keys.subspan(sent, std::min(keys_per_get, keys.size() - sent));
        connection.send(request(StoreOp::MultiGet, part), until, call);
        sent += part.size();
      }
      values.push_back(connection.receive_bytes(until, call));
    }
    return values;
  }

  void set_all(Keys keys, Keys values, const std::string& call, Deadline until) {
    std::string bytes;
    for (std::size_t begin = 0; begin < keys.size();) {
      std::size_t end = begin, size = 0;
      while (end < keys.size() && end - begin < pairs_per_set && size < set_bytes) {
        size += keys[end].size() + values[end].size();
        ++end;
      }
      bytes += request(StoreOp::MultiSet);
      put_number<std::uint64_t>(bytes, end - begin);
      for (; begin < end; ++begin) {
        put_key(bytes, keys[begin]);
        send_with(bytes, values[begin], until, call);
      }
      connection.send(bytes, until, call);
      bytes.clear();
    }
  }

  std::optional<std::string> pop(std::string_view key, const std::string& call, Deadline until) {
    return link.once(call, until, request(StoreOp::QueuePop, key),
                     [&]() -> std::optional<std::string> {
                       if (connection.receive_number<std::int64_t>(until, call) == 0) return {};
                       return connection.receive_bytes(until, call);
                     });
  }

  StoreLink link;
  StoreConnection& connection;
};

StoreClient::StoreClient(const std::string& host, std::uint16_t port, StoreClientOptions options)
    : impl_(std::make_unique<Impl>(host, port, std::move(options))) {}
StoreClient::StoreClient(const std::string& host, std::uint16_t port, Timeout timeout)
    : StoreClient(host, port, StoreClientOptions{.timeout = timeout}) {}
StoreClient::~StoreClient() = default;
StoreClient::StoreClient(StoreClient&&) noexcept = default;
StoreClient& StoreClient::operator=(StoreClient&&) noexcept = default;

void StoreClient::set(std::string_view key, std::string_view value, Limit limit) {
  const std::string call = call_text("set", key);
  std::string head = request(StoreOp::Set, key);
  if (value.size() < large_bytes) {
    put_string(head, value);
    return impl_->link.post(call, impl_->deadline(limit), head);
  }
  impl_->confirm(call, limit, [&](Deadline until) {
    std::string again = head;
    impl_->send_with(again, value, until, call);
  });
}

std::string StoreClient::get(std::string_view key, Limit limit) {
  const std::string call = call_text("get", key);
  // GET of a key that is not there is answered with nothing, at once: PyTorch's clients wait
  // first, and so do ours.
  const std::string owned(key);
  const auto until = impl_->deadline(limit);
  impl_->wait(Keys(&owned, 1), call, limit, until);
  // A key that comes at the deadline is got all the same.
  const auto end = until + cancel_timeout;
  return impl_->link.repeat(call, end, [&] {
    impl_->connection.send(request(StoreOp::Get, key), end, call);
    return impl_->connection.receive_bytes(end, call);
  });
}

std::int64_t StoreClient::add(std::string_view key, std::int64_t delta, Limit limit) {
  const std::string call = call_text("add", key);
  std::string bytes = request(StoreOp::Add, key);
  put_number(bytes, delta);
  // 0 only reads, and so may be asked twice.
  if (delta == 0) return impl_->ask<std::int64_t>(call, bytes, limit);
  return impl_->ask_once<std::int64_t>(call, bytes, limit);
}

std::string StoreClient::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired, Limit limit) {
  const std::string call = call_text("compare_set", key);
  std::string bytes = request(StoreOp::CompareSet, key);
  put_string(bytes, expected);
  put_string(bytes, desired);
  const auto until = impl_->deadline(limit);
  return impl_->link.once(call, until, bytes,
                          [&] { return impl_->connection.receive_bytes(until, call); });
}

bool StoreClient::check(Keys keys, Limit limit) {
  const std::string call = call_text("check", keys);
  const auto answer = impl_->ask<std::uint8_t>(call, request(StoreOp::Check, keys), limit);
  if (answer > check_not_ready) {
    impl_->connection.fail(call, "got the answer " + std::to_string(answer));
  }
  return answer == check_ready;
}

void StoreClient::wait(Keys keys, Limit limit) {
  impl_->wait(keys, call_text("wait", keys), limit, impl_->deadline(limit));
}

bool StoreClient::delete_key(std::string_view key, Limit limit) {
  return impl_->ask_once<std::int64_t>(call_text("delete_key", key),
                                       request(StoreOp::DeleteKey, key), limit) > 0;
}

std::int64_t StoreClient::num_keys(Limit limit) {
  return impl_->ask<std::int64_t>("num_keys()", request(StoreOp::NumKeys), limit);
}

void StoreClient::append(std::string_view key, std::string_view value, Limit limit) {
  const std::string call = call_text("append", key);
  std::string bytes = request(StoreOp::Append, key);
  put_string(bytes, value);
  const auto until = impl_->deadline(limit);
  impl_->link.once(call, until, bytes + confirm_request(),
                   [&] { return impl_->confirmation(until, call); });
}

std::vector<std::string> StoreClient::list_keys(Limit limit) {
  const auto until = impl_->deadline(limit);
  StoreConnection& connection = impl_->connection;
  return impl_->link.repeat("list_keys()", until, [&] {
    std::vector<std::string> keys;
    connection.send(request(StoreOp::ListKeys), until, "list_keys()");
    auto left = connection.receive_number<std::int64_t>(until, "list_keys()");
    for (; left > 0; --left) {
      std::string key = connection.receive_bytes(until, "list_keys()");
      if (key.starts_with('/')) keys.push_back(key.substr(1));
    }
    return keys;
  });
}

std::vector<std::string> StoreClient::multi_get(Keys keys, Limit limit) {
  const std::string call = call_text("multi_get", keys);
  const auto until = impl_->deadline(limit);
  impl_->wait(keys, call, limit, until);
  const auto end = until + cancel_timeout;  // As of get().
  return impl_->link.repeat(call, end, [&] { return impl_->get_all(keys, call, end); });
}

void StoreClient::multi_set(Keys keys, Keys values, Limit limit) {
  const std::string call = call_text("multi_set", keys);
  if (keys.size() != values.size()) {
    throw StoreError(call + ": " + std::to_string(keys.size()) + " keys but " +
                     std::to_string(values.size()) + " values");
  }
  impl_->confirm(call, limit, [&](Deadline until) { impl_->set_all(keys, values, call, until); });
}

void StoreClient::queue_push(std::string_view key, std::string_view value, Limit limit) {
  const std::string call = call_text("queue_push", key);
  std::string bytes = request(StoreOp::QueuePush, key);
  put_string(bytes, value);
  const auto until = impl_->deadline(limit);
  impl_->link.once(call, until, bytes + confirm_request(),
                   [&] { return impl_->confirmation(until, call); });
}

// Another client may take the item between the WAIT and the QUEUE_POP.
std::string StoreClient::queue_pop(std::string_view key, Limit limit) {
  const std::string call = call_text("queue_pop", key);
  // QUEUE_POP of an empty queue is answered with 0, at once: PyTorch's clients wait first, and so
  // do ours.
  const std::string owned(key);
  const auto until = impl_->deadline(limit);
  for (;;) {
    impl_->wait(Keys(&owned, 1), call, limit, until);
    if (auto item = impl_->pop(key, call, until + cancel_timeout)) return *std::move(item);
  }
}

std::optional<std::string> StoreClient::try_queue_pop(std::string_view key, Limit limit) {
  return impl_->pop(key, call_text("try_queue_pop", key), impl_->deadline(limit));
}

std::int64_t StoreClient::queue_len(std::string_view key, Limit limit) {
  return impl_->ask<std::int64_t>(call_text("queue_len", key), request(StoreOp::QueueLen, key),
                                  limit);
}

void StoreClient::barrier(std::string_view key, std::int64_t count, Limit limit) {
  const std::string call = call_text("barrier", key);
  std::string bytes = request(StoreOp::Barrier, key);
  put_number(bytes, count);
  const auto until = impl_->deadline(limit);
  impl_->link.once(call, until, bytes, [&] {
    return receive_release(impl_->connection, {}, call, impl_->limit_of(limit), until);
  });
}

std::string StoreClient::local_address() const { return impl_->connection.local_address(); }

const std::string& StoreClient::store_identity() const { return impl_->link.identity(); }

}  // namespace ddprun::rendezvous
