// What nodes that come to a running job may cost those that are there.
//
// To take a node in stops all workers once; when it goes they stop again. Whoever may join could so
// keep a job from training (54 attempts in 20 s were counted), or end it by using up its restarts.
// So a node that came after the first attempt takes nothing from --max-restarts when it goes, and
// each one that went makes the next ones wait longer until they are taken in: they stand by as
// spares. The pause is the job's and not an address's, since addresses cost little. Nodes of the
// first attempt are the job itself, and none of this is for them.
// A core: no sockets, threads or clock.
#pragma once

#include <optional>

#include "rendezvous/control/liveness.h"

namespace ddprun::rendezvous {

class Newcomers {
 public:
  struct Limits {
    // A node that took part for so long belongs to the job, and its failures are the job's. As long
    // without a loss ends a row of them.
    Milliseconds settled{300'000};
    Milliseconds pause_first{5'000};  // Doubles with each loss in a row ...
    Milliseconds pause_max{300'000};  // ... up to this.
  };

  explicit Newcomers(const Limits& limits) : limits_(limits) {}

  // One has gone: its connection broke, it left, or its workers failed.
  void went(TimePoint now);
  // Whether a node that takes part since `since` (nothing: not yet) belongs to the job by now.
  bool settled(std::optional<TimePoint> since, TimePoint now) const {
    return since && now - *since >= limits_.settled;
  }
  // Until when those that are not settled stand by; nothing: they need not.
  std::optional<TimePoint> pause_ends(TimePoint now) const;

 private:
  Limits limits_;
  int row_ = 0;
  TimePoint last_{};
  TimePoint pause_ends_{};
};

}  // namespace ddprun::rendezvous
