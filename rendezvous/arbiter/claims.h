// An arbiter: a place that all nodes reach, which gives each round's word away once.
//
// What it must do is little, so that a file system can be one: keep for each round a list of
// claims, to which an entry is added only at a number that has none yet. Who adds it first has it,
// however many try. The last entry counts. Besides, who has the last entry leaves a number there
// that grows (its beat), by which others see that it lives.
//
//   list of round (0, 3)     0: node a, term 0       a saw that half of the round was gone
//                            1: node b, term 1       b saw no beat of a's for long enough
//                            2: node b, kept         b begins a round of its own: nothing follows
//
// A claim lapses only before it is kept, and keeping it takes the same number that another's claim
// would: so whoever was only asleep cannot begin a round that somebody else has begun instead, and
// no clock, no delay and no frozen process can make two go on. When a claim lapses decides only how
// soon the others may try. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/control/council.h"

namespace ddprun::rendezvous {

struct Claim {
  Seat holder;
  int term = 0;
  bool kept = false;
};

// A round's list, as its end was seen.
struct Claims {
  int count = 0;
  Claim last;                         // If there is one ...
  std::optional<std::uint64_t> beat;  // ... and what its holder has left, if it has.
};

// What an arbiter is asked to do, in this order; all of it or, where it fails, less.
struct ArbiterTask {
  RoundName round;
  std::optional<Claim> add;  // As number `at`, if that has no entry.
  int at = 0;
  std::optional<std::uint64_t> beat;  // Of this agent.
};

struct ArbiterReply {
  std::optional<Claims> claims;  // After it; none: the arbiter could not be asked.
  std::string why;               // For people, then.
};

}  // namespace ddprun::rendezvous
