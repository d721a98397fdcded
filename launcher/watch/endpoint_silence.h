// When the job at an endpoint that has told of it before is taken for over, since no answer comes.
//
// One late answer says nothing: its coordinator may be halted, busy or cut off, or another node
// takes over. "Nobody listens" is what remains of a job that has ended, and comes within a round
// trip; a forwarder that is started anew says it, too, for a moment. The longest that a takeover
// takes with the default time-outs is 47 s.
//
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <optional>

namespace ddprun::launcher {

class EndpointSilence {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds unheard_limit{60};
  static constexpr std::chrono::seconds refused_limit{3};

  void heard() { unheard_since_ = refused_since_ = std::nullopt; }

  // It was asked and did not answer; `refused`: nobody listens there.
  void missed(bool refused, Time now) {
    if (!unheard_since_) unheard_since_ = now;
    if (!refused) refused_since_.reset();
    if (refused && !refused_since_) refused_since_ = now;
  }

  bool is_over(Time now) const {
    return (unheard_since_ && now - *unheard_since_ >= unheard_limit) ||
           (refused_since_ && now - *refused_since_ >= refused_limit);
  }

 private:
  std::optional<Time> unheard_since_, refused_since_;
};

}  // namespace ddprun::launcher
