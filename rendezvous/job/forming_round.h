// A round while it forms: since when nodes are waited for, when to look again whether it may close,
// who went meanwhile, and what those that wait have been told.
// A core: no sockets, threads or clock.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/job/round.h"

namespace ddprun::rendezvous {

class FormingRound {
 public:
  static constexpr Milliseconds repeat{10'000};  // How often nodes hear again whom they wait for.

  FormingRound(const RoundLimits& limits, TimePoint now);

  void reopen(TimePoint now);                              // An attempt is over, another follows.
  void wait_until(TimePoint time) { not_before_ = time; }  // Before that it does not close.
  void went(std::string who_and_how);  // To be named should the wait end without a round.
  // Of a node of an elastic job, which has heard of attempts up to that number (-1: none).
  void came(int attempt_heard_of) { has_begun_before_ |= !reforming_ && attempt_heard_of >= 0; }
  bool has_begun_before() const { return has_begun_before_; }

  // With `nodes` in join order. Nothing: it must not close yet, whoever is there.
  std::optional<RoundDecision> look(std::vector<RoundNode> nodes, TimePoint now);
  // When look() is due.
  std::optional<TimePoint> look_again() const { return look_again_; }
  // Whether nodes should hear of a wait: somebody came or went, or they have not heard for long.
  // True once.
  bool has_news(const RoundDecision& wait, TimePoint now);

 private:
  RoundLimits limits_;
  TimePoint opened_;
  bool reforming_ = false;
  bool has_begun_before_ = false;
  std::optional<TimePoint> not_before_;
  std::optional<TimePoint> enough_since_;
  std::optional<TimePoint> look_again_;
  std::deque<std::string> went_;  // Since the last round: the last of them ...
  int went_before_ = 0;           // ... and how many there were before those.
  TimePoint told_at_;
  int told_joined_ = -1;
};

}  // namespace ddprun::rendezvous
