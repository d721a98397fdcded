// When the port is looked at again after strangers came: at once, or a little later, with those who
// come meanwhile. A core: no sockets or clock.
//
// Of what a connection costs that says nothing, being woken for it is a third, and a worker that
// computes on this processor is stopped for it each time. So a few strangers are taken as they
// come, and a crowd in batches. Who belongs here and comes in a crowd waits for the batch, too:
// nobody's address is known before it is accepted.
//
// The kernel's own wait for a first byte (TCP_DEFER_ACCEPT) does not do it: it holds somaxconn
// connections, 4,096, for 15 s, and all beyond those are accepted at once, as SYN cookies. And a
// client of an attempt that has ended could lie there until the next one has begun.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace ddprun::rendezvous {

class AcceptPace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int at_once_max = 32;                // One after the other, and then ...
  static constexpr std::chrono::milliseconds each{10};  // ... one in this time.
  static constexpr std::chrono::milliseconds rest{20};  // 50 batches a second.

  // `strangers` have been accepted, and nobody else waits. How long nobody is to be accepted.
  std::chrono::milliseconds note(std::size_t strangers, Clock::time_point now) {
    if (strangers == 0) return std::chrono::milliseconds{0};
    const auto count = static_cast<int>(std::min<std::size_t>(strangers, 2 * at_once_max));
    paid_until_ = std::max(paid_until_, now - at_once_max * each) + count * each;
    const bool crowd = paid_until_ > now;
    // What a crowd of long ago owes is forgotten.
    paid_until_ = std::min(paid_until_, now + rest);
    return crowd ? rest : std::chrono::milliseconds{0};
  }

 private:
  Clock::time_point paid_until_{};
};

}  // namespace ddprun::rendezvous
