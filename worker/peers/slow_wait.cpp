// The decision is a function of times; beside it, the words and to whom they go.
#include "worker/peers/slow_wait.h"

#include <algorithm>
#include <iostream>

#include "rendezvous/time_text.h"
#include "worker/communicator.h"

namespace ddprun::worker {

using std::chrono::milliseconds;

bool slow_wait_is_due(milliseconds waited, bool told, const SlowWaitLimits& limits) {
  return !told && limits.slow < limits.timeout && waited >= limits.slow;
}

SlowWaitTeller::SlowWaitTeller(const CommunicatorOptions& options)
    : limits_{options.slow_wait, options.collective_timeout},
      timeout_name_(options.collective_timeout_name),
      tell_(options.on_slow_wait) {
  // One write, so that lines of several ranks do not mix.
  if (!tell_) tell_ = [](const std::string& text) { std::cerr << "ddprun: " + text + "\n"; };
}

bool SlowWaitTeller::is_due(Clock::time_point since, bool told, Clock::time_point now) const {
  return slow_wait_is_due(std::chrono::duration_cast<milliseconds>(now - since), told, limits_);
}

SlowWaitTeller::Clock::time_point SlowWaitTeller::next_look(Clock::time_point since, bool told,
                                                            Clock::time_point deadline) const {
  return told ? deadline : std::min(deadline, since + limits_.slow);
}

void SlowWaitTeller::tell(int rank, Clock::duration waited, const std::string& call,
                          const std::string& cause) const {
  tell_("rank " + std::to_string(rank) + " has waited for " +
        rendezvous::time_text(std::chrono::duration_cast<milliseconds>(waited)) + " in " + call +
        ": " + cause + "; it gives up after " + rendezvous::time_text(limits_.timeout) + " (" +
        timeout_name_ + " sets the limit)");
}

std::string SlowWaitTeller::timed_out() const {
  return "timed out after " + rendezvous::time_text(limits_.timeout) + " (" + timeout_name_ +
         " sets the limit)";
}

}  // namespace ddprun::worker
