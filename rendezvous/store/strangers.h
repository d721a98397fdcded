// Connections that have proved nothing yet: how many there may be, for how long, and which one
// gives way to the next.
//
// A newcomer is never turned away, the oldest stranger goes: whoever belongs here speaks at once
// and is no stranger within a round trip, while who only holds connections open grows old. A host
// that has its share loses one of its own, so that it cannot push out others.
//
// A host of which one after the other is refused has to wait: the first few are heard at once, for
// a node with a wrong secret is to be told within a round trip, the next ones after a pause. What
// refusals cost, handshakes above all, is then bounded by the host's places and the pause, and not
// by what it can send. Those that wait are heard together: each alone would wake the launcher.
// Fewer places for them were tried (32): who gives way comes again at once, and 3,000 connections a
// second that only come and go take more than 470 that wait for their handshakes. A core: no
// sockets, threads or clock.
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
    std::size_t refused_at_once = 16;  // Of one host, in refused_time.
    std::chrono::milliseconds refused_time{30'000};
    std::chrono::milliseconds pause{250};
  };

  explicit Strangers(Limits limits) : limits_(limits) {}

  // `host`: equal for all connections of one machine, as far as its address tells. Returns who has
  // to go for the newcomer; it is no stranger any more.
  std::optional<Id> add(Id id, const std::string& host, TimePoint now);
  void remove(Id id);  // Has proved itself, or is gone; unknown ones are ignored.

  // One of `host` has been refused; for how long the next one is to wait before it is heard: until
  // a moment that all who wait have in common, one each Limits::pause.
  void note_refused(const std::string& host, TimePoint now);
  std::chrono::milliseconds pause(const std::string& host, TimePoint now) const;

  // Whose time is up; they are no strangers any more.
  std::vector<Id> take_due(TimePoint now);
  std::optional<TimePoint> deadline() const;

  bool contains(Id id) const { return by_id_.contains(id); }
  std::size_t size() const { return by_id_.size(); }
  const Limits& limits() const { return limits_; }

 private:
  struct Entry {
    Id id;
    std::string host;
    TimePoint came;
  };

  struct Refused {
    TimePoint since;
    std::size_t times = 0;
  };
  static constexpr std::size_t refused_hosts_max = 1'024;  // Remembered; more start afresh.

  Limits limits_;
  std::unordered_map<std::string, Refused> refused_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Entry> by_age_;
  std::unordered_map<Id, std::uint64_t> by_id_;
  std::unordered_map<std::string, std::set<std::uint64_t>> by_host_;
};

}  // namespace ddprun::rendezvous
