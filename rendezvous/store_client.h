// A blocking client of the c10d store, with a deadline on every call. Talks to ddprun's store and
// to PyTorch's own TCPStore from torch 2.5 on: before that it knows no PING, with which every
// connection begins here (docs/store_protocol.md).
//
// A connection that breaks is made again. What a call then does depends on what it asks for:
//
//   set, multi_set     kept until a later answer shows that the store has them, and sent again
//   get, multi_get, wait, check, num_keys, queue_len, list_keys, add of 0
//                      asked again, within the call's deadline
//   add, compare_set, append, delete_key, queue_push, queue_pop, barrier
//                      sent again only if their last byte was never sent; else StoreUncertain
//
// The new connection must reach the same store in the same attempt
// (rendezvous/wire/store_attempt.h), or every later call throws StoreAttemptOver: a process of an
// attempt that is over neither reads nor writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/long_wait.h"

namespace ddprun::rendezvous {

// What was asked, of which store (host:port), and what came of it.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The deadline passed; for a wait the message lists the keys that are missing.
class StoreTimeout : public StoreError {
 public:
  using StoreError::StoreError;
};
// The connection broke after the request and before its answer: it may have been carried out, once,
// or not at all.
class StoreUncertain : public StoreError {
 public:
  using StoreError::StoreError;
};
// The store serves another attempt, or is another one. Final: every later call throws it too.
class StoreAttemptOver : public StoreError {
 public:
  using StoreError::StoreError;
};
// StoreClientOptions::interrupt_fd ended a wait, and with it the connection.
class StoreInterrupted : public StoreError {
 public:
  using StoreError::StoreError;
};

struct StoreClientOptions {
  // To connect at first, and of every call that is given no other limit.
  std::chrono::milliseconds timeout{300'000};
  // For so long a connection that broke is tried to be made again; 0: never.
  std::chrono::milliseconds reconnect_timeout{10'000};
  // The attempt that this process belongs to, as the store names it; "": not known.
  std::string attempt;
  // Whose store it is: messages ask whether that one is running.
  std::string hosted_by = "the launcher";
  // Proves that this process is of the job, to a store that asks for it (--store-auth): called with
  // the statement to be proved. Empty: it cannot.
  std::function<std::string(std::string_view statement)> prove;
  // While it is readable nothing is waited for: StoreInterrupted. Not closed here; -1: none.
  int interrupt_fd = -1;
  // What is said while the first connection is waited for.
  WaitWords connecting;
};

class StoreClient {
 public:
  using Timeout = std::chrono::milliseconds;
  // Of one call, reconnecting included; none: StoreClientOptions::timeout.
  using Limit = std::optional<Timeout>;

  // Connects, retrying with a growing pause until the timeout. Not thread-safe: one thread at a
  // time. Throws StoreError.
  StoreClient(const std::string& host, std::uint16_t port, StoreClientOptions options);
  StoreClient(const std::string& host, std::uint16_t port, Timeout timeout = Timeout{300'000});
  ~StoreClient();
  StoreClient(StoreClient&&) noexcept;
  StoreClient& operator=(StoreClient&&) noexcept;

  // Keys are sent as "/" + key, as PyTorch's client does, so the two see each other's keys.
  // Returns when it is sent, as PyTorch's does; of a large value, when the store has it.
  void set(std::string_view key, std::string_view value, Limit limit = {});
  std::string get(std::string_view key, Limit limit = {});  // Waits for the key.
  std::int64_t add(std::string_view key, std::int64_t delta, Limit limit = {});
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Limit limit = {});
  bool check(std::span<const std::string> keys, Limit limit = {});
  void wait(std::span<const std::string> keys, Limit limit = {});
  bool delete_key(std::string_view key, Limit limit = {});
  std::int64_t num_keys(Limit limit = {});  // With keys that are none of a user's, as "init/".
  void append(std::string_view key, std::string_view value, Limit limit = {});
  // Torch's servers from 2.10 on. Keys without the "/" before them are left out.
  std::vector<std::string> list_keys(Limit limit = {});

  // Any number of keys: in several requests, each sent before the one before it is answered.
  std::vector<std::string> multi_get(std::span<const std::string> keys, Limit limit = {});
  // Returns when the store has them all. Others may see some before the rest.
  void multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                 Limit limit = {});

  // First in, first out; torch's servers from 2.8 on.
  void queue_push(std::string_view key, std::string_view value, Limit limit = {});
  std::string queue_pop(std::string_view key, Limit limit = {});  // Waits for an item.
  std::optional<std::string> try_queue_pop(std::string_view key, Limit limit = {});
  std::int64_t queue_len(std::string_view key, Limit limit = {});

  // Returns when `count` calls have come, this one included; the key counts them and is never
  // reset, so every barrier needs a key of its own. Torch's servers from 2.12 on.
  void barrier(std::string_view key, std::int64_t count, Limit limit = {});

  // The address from which this client reaches the store: what peers can use to reach us.
  std::string local_address() const;
  // What the store answered when it was asked for its attempt (rendezvous/wire/store_attempt.h).
  const std::string& store_identity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
