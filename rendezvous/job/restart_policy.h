// Whether a job that failed tries again, and when: decided without a clock or a source of chance.
//
//   budget      every failure takes one restart from --max-restarts; an attempt that ran for
//               `forgive_after` gives all of them back
//   backoff     the first restart comes at once; while attempts bring nothing, each further one
//               waits twice as long as the one before, with jitter, up to `backoff_max`. What ends
//               such a row is an attempt that got further than all before it, or one that ran long
//               (a program need not say how far it is). One loss in it that no program had a part
//               in does not count: machines go in twos, and waiting heals nothing there
//   sameness    the same worker that fails in the same way right after its start, again and again,
//               will not be healed by one more attempt
//   usage       a worker that says that what its user gave is wrong, and ends with 2, ends a job in
//               its first attempt. Later ones have something to lose, and have got over that point
//               before: what is wrong may be a node that came since then. The status alone says
//               nothing, it is any program's
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/liveness.h"

namespace ddprun::rendezvous {

struct RestartLimits {
  int restarts_max = 0;
  Milliseconds backoff_first{500};  // Of the second restart in a row; 0: no restart ever waits.
  Milliseconds backoff_max{30'000};
  Milliseconds healthy{60'000};  // An attempt that ran this long ends a row of failures, too.
  int same_failures_max = 5;     // In a row; 0: any number.
  Milliseconds quick{10'000};    // How soon after its start a failure counts for that.
  std::optional<Milliseconds> forgive_after;  // Nothing: the budget is for the whole job.
};

struct RestartDecision {
  bool restart = false;
  Milliseconds delay{0};  // From the failure to the next attempt's start, at least.
  std::string reason;     // What comes next and why, for people: "restarting (2 of 3 ...)".
};

bool shows_a_wrong_command(const FirstCause& cause);  // "usage", above.

class RestartPolicy {
 public:
  // `seed`: of the jitter. Jobs that fail together, say for a full disk, then do not come back
  // together.
  RestartPolicy(const RestartLimits& limits, std::uint64_t seed) : limits_(limits), seed_(seed) {}

  // What another coordinator, which is gone, had counted.
  void resume(int used, int in_a_row = 0) {
    used_ = used;
    row_ = in_a_row;
    spared_ = true;  // It may have been, and whatever takes its coordinator along must wait longer.
  }
  int used() const { return used_; }
  int in_a_row() const { return row_; }

  // An attempt that had run for `attempt_ran` failed. `progressed`: it had got further than all
  // attempts before it.
  RestartDecision on_failure(const FirstCause& cause, Milliseconds attempt_ran,
                             bool progressed = false);

  // An attempt ended because a node went that came later (newcomers.h). It uses no restart, but
  // the next attempt waits as after a failure: else nodes could come and go as fast as they like.
  Milliseconds on_departure(Milliseconds attempt_ran, bool progressed);

 private:
  void count(const FirstCause& cause, Milliseconds attempt_ran, bool progressed);
  void end_row_if_healthy(Milliseconds attempt_ran, bool progressed);
  Milliseconds backoff();

  RestartLimits limits_;
  std::uint64_t seed_;
  int used_ = 0;             // Of the budget.
  int row_ = 0;              // Failures since the last attempt that brought something, but for ...
  bool spared_ = false;      // ... one loss from outside, if there was any.
  int same_ = 0;             // Quick failures in a row that were all alike.
  FirstCause last_quick_{};  // What they were.
};

}  // namespace ddprun::rendezvous
