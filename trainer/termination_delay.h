// SIGTERM and SIGINT while something must be finished first: the process ends when that is done.
//
// Outside of a delay the signals work as ever. A second signal ends the process at once, and so
// does SIGKILL, which a launcher sends when its grace period is over. One object at a time; no
// threads of its own.
#pragma once

namespace ddprun::trainer {

class TerminationDelay {
 public:
  // Leaves a signal alone that the process ignores or handles already.
  TerminationDelay();
  ~TerminationDelay();
  TerminationDelay(const TerminationDelay&) = delete;
  TerminationDelay& operator=(const TerminationDelay&) = delete;

  void begin();
  void end();  // Does not return when a signal has come since begin().
};

}  // namespace ddprun::trainer
