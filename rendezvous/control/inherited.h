// What a takeover hands from the agent that it has chosen to the coordinator that begins there.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/liveness.h"

namespace ddprun::rendezvous {

// The job as an agent knew it that takes over from a coordinator which is gone.
struct Inherited {
  int term = 0;                  // Under which this one leads.
  Succession succession;         // Of the last round.
  std::string lost_why;          // How the coordinator went, for people.
  bool handed_over = false;      // It is there still, and comes as a member that leaves.
  Milliseconds ran{0};           // The last round, since this agent heard that it begins.
  std::vector<RoundName> given;  // Of which this agent has the arbiter's word.
};

}  // namespace ddprun::rendezvous
