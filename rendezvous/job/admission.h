// What becomes of an agent that says hello and is no member of the round that goes on.
//
//   it was in a later term of this job        -> it has to find that one
//   the job ends, the hello does not fit it   -> refused, told no more than it knows already
//   nothing is wrong but that an agent of its
//   own host has its rank                     -> waits until that one has shown whether it lives
//   otherwise                                 -> a member
//
// A core: no sockets, threads or clock.
#pragma once

#include <string>

#include "rendezvous/control/control_message.h"
#include "rendezvous/job/roster.h"
#include "rendezvous/job/round.h"

namespace ddprun::rendezvous {

struct Admission {
  enum class Kind { Member, Refused, ContestsRank, Elsewhere };
  Kind kind = Kind::Member;
  Refusal refusal = {};  // Refused.
  PeerId holder = 0;     // ContestsRank: who has the rank.
};

// The job as far as it matters to who comes.
struct AdmissionRules {
  std::string run_id;
  RoundLimits round;
  std::string host_node_id;  // Whose agent lives in this process: nobody contests its rank.
  bool heartbeats = true;    // Without them nobody could show that it lives.
  int term = 0;
  bool ending = false;
};

Admission admission_of(const Hello& hello, const Roster& nodes, const AdmissionRules& rules);

}  // namespace ddprun::rendezvous
