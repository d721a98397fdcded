// What nodes that come to a running job may cost those that are there.
//
// To take a node in stops all workers once; when it goes they stop again. Whoever may join could so
// keep a job from training (54 attempts in 20 s were counted), or end it by using up its restarts.
// So a node that came after the first attempt takes nothing from --max-restarts when it goes, and
// there is an account: what such losses cost is paid for by the time in which the job runs, of
// which a tenth may go that way. Who comes while the account is overdrawn stands by as a spare. It
// is the job's and not an address's, since addresses cost little; a single loss is always covered,
// however long it lasted. Nodes of the first attempt are the job itself, and none of this is for
// them.
// A core: no sockets, threads or clock.
#pragma once

#include <optional>

#include "rendezvous/control/liveness.h"

namespace ddprun::rendezvous {

class Newcomers {
 public:
  struct Limits {
    // A node that took part for so long belongs to the job, and its failures are the job's.
    Milliseconds settled{300'000};
    // A loss counts as this much at least: workers start anew, and do again what they had begun.
    Milliseconds cost_least{1'000};
    Milliseconds pause_max{300'000};
  };

  explicit Newcomers(const Limits& limits) : limits_(limits) {}

  void runs(TimePoint now);    // All workers do, from here on.
  void stands(TimePoint now);  // They are stopped, for whatever reason.
  // One has gone: its connection broke, it left, or its workers failed. Before or after stands().
  void went(TimePoint now);
  // Whether a node that takes part since `since` (nothing: not yet) belongs to the job by now.
  bool settled(std::optional<TimePoint> since, TimePoint now) const {
    return since && now - *since >= limits_.settled;
  }
  // Until when those that are not settled stand by, should the job run until then; nothing: they
  // need not.
  std::optional<TimePoint> pause_ends(TimePoint now) const;

 private:
  using Duration = TimePoint::duration;

  Duration balance(TimePoint now) const;
  void charge(Duration cost, TimePoint now);

  Limits limits_;
  Duration balance_{};  // In running time, at running_since_ or when the job was stopped.
  std::optional<TimePoint> running_since_;
  std::optional<TimePoint> stopped_at_;
  bool lost_ = false;       // Somebody, in this stop.
  bool overdrawn_ = false;  // A loss came before the one before it was paid for.
};

}  // namespace ddprun::rendezvous
