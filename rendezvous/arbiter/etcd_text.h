// What etcd is asked and what it answers, as its JSON gateway writes them: numbers of 64 bits as
// texts, keys and values in base64, and fields that are zero not at all.
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::rendezvous {

std::string to_base64(std::string_view bytes);
std::optional<std::string> from_base64(std::string_view text);  // Nothing if it is none.

// A transaction: all conditions hold and what follows is done in this order, or nothing is.
class EtcdTransaction {
 public:
  EtcdTransaction& if_absent(const std::string& key);
  EtcdTransaction& if_present(const std::string& key);
  EtcdTransaction& if_value(const std::string& key, const std::string& value);
  // `lease`: the key goes with it; 0: it stays.
  EtcdTransaction& put(const std::string& key, const std::string& value, std::int64_t lease = 0);
  EtcdTransaction& read(const std::string& key);
  // `folder` ends with a slash, as below.
  EtcdTransaction& read_below(const std::string& folder);
  EtcdTransaction& remove_below(const std::string& folder);
  EtcdTransaction& remove(const std::string& key);

  std::string body() const;  // For /v3/kv/txn.

 private:
  std::string compare_, then_;
};

struct EtcdResult {
  bool held = false;                          // The conditions.
  std::map<std::string, std::string> values;  // What was read, by key.
};

// All three: nothing if the answer is no such answer.
std::optional<EtcdResult> parse_etcd_result(std::string_view body);
// Of a lease: its number, and the seconds that it has left (0: it is over).
std::optional<std::int64_t> parse_etcd_grant(std::string_view body);
std::optional<std::int64_t> parse_etcd_keep_alive(std::string_view body);

std::string etcd_grant_body(std::chrono::seconds lasts);
std::string etcd_lease_body(std::int64_t lease);  // To keep it alive, or to end it.

}  // namespace ddprun::rendezvous
