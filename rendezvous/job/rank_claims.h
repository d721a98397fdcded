// Who is node 1 when two agents of one host say that they are: the old agent may have gone without
// a word (its machine lost power and has started again), or somebody gave two agents one rank.
//
// Nobody is put out on a stranger's word: the newcomer waits while the holder of the rank has the
// time of two heartbeats to show that it lives. Host names prove nothing about a process, and the
// clock of a machine that just started may be wrong, so neither decides.
// A core: no sockets, threads or clock.
#pragma once

#include <optional>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/job/roster.h"

namespace ddprun::rendezvous {

class RankClaims {
 public:
  struct Claim {
    PeerId newcomer = 0;
    Hello hello;
    PeerId holder = 0;
    TimePoint deadline;  // The holder is gone if it has not been heard by then.
  };

  void add(Claim claim) { claims_.push_back(std::move(claim)); }
  bool waits(PeerId newcomer) const;
  void drop(PeerId newcomer);  // It went away itself.

  // The holder lives, or is gone: the claims on its rank, which are over with that.
  std::vector<Claim> take_those_on(PeerId holder);
  // A claim whose holder was silent for too long; call again until there is none. `late`: by how
  // much this check missed its time: whoever slept himself has not listened, and gives the holders
  // their time again.
  std::optional<Claim> take_due(TimePoint now, TimePoint::duration late, Milliseconds patience);

  std::optional<TimePoint> next_deadline() const;

 private:
  std::vector<Claim> claims_;  // In the order they came.
};

}  // namespace ddprun::rendezvous
