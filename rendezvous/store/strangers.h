// Connections that have proved nothing yet: how many there may be, for how long, and which one
// gives way to the next.
//
// A newcomer is never turned away, the oldest stranger goes: whoever belongs here speaks at once
// and is no stranger within a round trip, while who only holds connections open grows old. A host
// that has its share loses one of its own, so that it cannot push out others.
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace ddprun::rendezvous {

class Strangers {
 public:
  using Id = std::uint64_t;
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Limits {
    std::size_t total_max = 1'024;
    std::size_t per_host_max = 128;  // Nodes behind one translated address are one host here.
    std::chrono::milliseconds time_max{10'000};
  };

  explicit Strangers(Limits limits) : limits_(limits) {}

  // `host`: equal for all connections of one machine, as far as its address tells. Returns who has
  // to go for the newcomer; it is no stranger any more.
  std::optional<Id> add(Id id, const std::string& host, TimePoint now);
  void remove(Id id);  // Has proved itself, or is gone; unknown ones are ignored.

  // Whose time is up; they are no strangers any more.
  std::vector<Id> take_due(TimePoint now);
  std::optional<TimePoint> deadline() const;

  std::size_t size() const { return by_id_.size(); }
  const Limits& limits() const { return limits_; }

 private:
  struct Entry {
    Id id;
    std::string host;
    TimePoint came;
  };

  Limits limits_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Entry> by_age_;
  std::unordered_map<Id, std::uint64_t> by_id_;
  std::unordered_map<std::string, std::set<std::uint64_t>> by_host_;
};

}  // namespace ddprun::rendezvous
