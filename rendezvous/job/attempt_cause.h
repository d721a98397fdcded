// Why an attempt ended: the first failure, which need not be the first that was heard of.
//
// Nodes tell how long ago their workers failed, each by its own clock, and a report's way to here
// is not in that. Only a difference that no way explains makes the later report the earlier
// failure; but a worker that tells of a peer's end knows of no error of its own, and one of another
// node that does is that peer. What is known of nodes themselves (one was lost, or left after a
// signal) is not compared: it has no age. A core: no sockets, threads or clock.
#pragma once

#include <optional>

#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/liveness.h"

namespace ddprun::rendezvous {

class AttemptCause {
 public:
  void attempt_began(TimePoint now);  // Forgets the cause of the one before.
  void forget();                      // What ends the job has another reason.

  void ended_by(FirstCause cause, TimePoint now);  // As far as is known now.
  // A failure that is reported later, of before its node was told to stop. True when it was the
  // first after all, and is the cause now;
  // the exit status stays that of the worker that ended first, since that verdict is out.
  bool heard_of(FirstCause other, TimePoint now);

  const std::optional<FirstCause>& get() const { return cause_; }

 private:
  TimePoint time_of(const FirstCause& cause, TimePoint now) const;

  TimePoint began_{};
  std::optional<FirstCause> cause_;
  std::optional<TimePoint> failed_at_;  // Of a worker's failure, by this coordinator's clock.
};

}  // namespace ddprun::rendezvous
