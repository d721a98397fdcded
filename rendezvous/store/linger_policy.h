// Whether the store looks for its next request or falls asleep until that comes.
// A core: no clock.
//
// After a request the next one is often only microseconds away. To look for it, and to yield the
// processor between two looks, is then cheaper for both sides than to fall asleep and be woken. But
// somebody who computes keeps a processor that is yielded for its whole slice, and falling asleep
// is better: who is woken comes before who computes. One long yield may be chance, so the first
// pause is short; when looking again ends the same way, the next one is twice as long.
#pragma once

#include <algorithm>
#include <chrono>

namespace ddprun::rendezvous {

class LingerPolicy {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds linger{50};      // Without a request.
  static constexpr std::chrono::microseconds yield_max{500};  // More: somebody computes here.
  static constexpr std::chrono::milliseconds pause_first{2};
  static constexpr std::chrono::milliseconds pause_max{100};

  bool crowded(Clock::time_point now) const { return now < crowded_until_; }

  bool lingers(Clock::time_point now, Clock::time_point last_request) const {
    return !crowded(now) && now - last_request < linger;
  }

  // Others were let run at `before`, and the processor came back at `now`.
  void note_yield(Clock::time_point before, Clock::time_point now) {
    if (now - before <= yield_max) return;
    const bool soon = before - crowded_until_ < pause_;  // After the pause before.
    pause_ = soon ? std::min<Clock::duration>(2 * pause_, pause_max) : pause_first;
    crowded_until_ = now + pause_;
  }

 private:
  Clock::time_point crowded_until_{};
  Clock::duration pause_{};
};

}  // namespace ddprun::rendezvous
