// What the arbiter answers to an agent that wants to go on without a majority
// (rendezvous/arbiter/claimant.h asks it, the takeover and the job wait for it).
// A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/control/council.h"

namespace ddprun::rendezvous {

// May this agent go on after these rounds?
struct WordWish {
  std::vector<RoundName> rounds;  // Of all of them, or of none.
  int term = 0;                   // Under which it leads.
  // The coordinator of these rounds, which may raise its term above that of a successor that died.
  bool leads = false;
  // For ever: from here on the word is nobody else's, even if this agent falls silent.
  bool keep = false;
};

struct Word {
  enum class Kind {
    Given,      // It is this agent's for as long as it is not silent ...
    Kept,       // ... or for ever.
    Refused,    // It is another one's, `holder`.
    Outdated,   // Whoever had it before has gone, but had a term not below this agent's.
    Unreached,  // The arbiter cannot be asked, `why`. Another answer may come later.
  };
  Kind kind = Kind::Unreached;
  std::vector<RoundName> rounds;
  int term = 0;  // Given, Kept: under which; Outdated: above which.
  Seat holder = {};
  std::string why;
};

}  // namespace ddprun::rendezvous
