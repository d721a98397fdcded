// Is the other end of a connection still there? Decided from silence, on one monotonic clock.
//
// A detector that was itself late (its process stopped, its machine overloaded) must not blame the
// other side: what looks like silence may be bytes that wait unread in our own socket. So a check
// that comes late voids its verdict and gives the other side a full time-out again.
#pragma once

#include <chrono>

namespace ddprun::rendezvous {

using TimePoint = std::chrono::steady_clock::time_point;
using Milliseconds = std::chrono::milliseconds;

class Liveness {
 public:
  Liveness(Milliseconds timeout, TimePoint now) : timeout_(timeout), heard_(now) {}

  void heard(TimePoint now) { heard_ = now; }

  // True when nothing was heard for the time-out. `late`: by how much this check missed its own
  // time.
  bool silent(TimePoint now, TimePoint::duration late) {
    if (late > timeout_ / 2) heard_ = now;
    return now - heard_ >= timeout_;
  }

  // When the next check can find it silent.
  TimePoint deadline() const { return heard_ + timeout_; }

  TimePoint::duration silence(TimePoint now) const { return now - heard_; }

 private:
  Milliseconds timeout_;
  TimePoint heard_;
};

}  // namespace ddprun::rendezvous
