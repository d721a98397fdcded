// A blocking client of the c10d store, with a deadline on every call. Talks to ddprun's store and
// to PyTorch's own TCPStore (protocol of torch >= 2.2, docs/store_protocol.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::rendezvous {

// What was asked, of which store (host:port), and what came of it.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The deadline passed; the message lists the keys that are missing. The client stays usable.
class StoreTimeout : public StoreError {
 public:
  using StoreError::StoreError;
};

class StoreClient {
 public:
  using Timeout = std::chrono::milliseconds;

  // Connects, retrying with a growing pause until `timeout`. `timeout` is also the default of the
  // waiting calls. Not thread-safe: one thread at a time. Throws StoreError.
  StoreClient(const std::string& host, std::uint16_t port, Timeout timeout = Timeout{300'000});
  ~StoreClient();
  StoreClient(StoreClient&&) noexcept;
  StoreClient& operator=(StoreClient&&) noexcept;

  // Keys are sent as "/" + key, as PyTorch's client does, so the two see each other's keys.
  void set(std::string_view key, std::string_view value);
  std::string get(std::string_view key);  // Waits for the key.
  std::int64_t add(std::string_view key, std::int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired);
  bool check(std::span<const std::string> keys);
  void wait(std::span<const std::string> keys);
  void wait(std::span<const std::string> keys, Timeout timeout);
  bool delete_key(std::string_view key);
  std::int64_t num_keys();
  void append(std::string_view key, std::string_view value);
  std::vector<std::string> multi_get(std::span<const std::string> keys);  // Waits for all.
  void multi_set(std::span<const std::string> keys, std::span<const std::string> values);

  // The address from which this client reaches the store: what peers can use to reach us.
  std::string local_address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
