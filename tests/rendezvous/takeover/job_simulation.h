// A whole job in one thread and in no time: the cores of its agents and of its coordinators, joined
// by a network whose every delay, cut and crash comes from a seed. What is checked after each event
// is that the job stays one:
//
//   a term has one leader
//   a round's nodes and workers have the ranks 0 to n-1, each node as many workers as it has said
//     that it can have, also where these grow fewer and more, and its number is above those of all
//     rounds whose workers ever ran together; a round moves only while all its workers run, so two
//     of them never do at once, and each that does descends from the one that did before and from
//     the last settled one
//   a launcher that is started again at the first endpoint opens no second job beside the first: no
//     round of it runs while one of the other does
//   no agent takes a round of a term older than one that it has followed, and no coordinator
//     ends the job well for what was said of an older term's round
//   when the failures are over, either some round runs with all its nodes and all of their workers,
//     and each other node waits for a place, or all agents have ended with a reason
//
// The glue between the cores is that of launcher/membership/membership.cpp, launcher/agent.cpp and
// rendezvous/coordinator.cpp, without their sockets: what these do differently is not tested here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/control/council.h"

namespace ddprun::simulation {

using Milliseconds = std::chrono::milliseconds;

struct Fault {
  enum class Kind {
    Cut,         // Nothing goes from `node` to `other`; what was sent comes when it has healed.
    Isolate,     // The same between `node` and all others, both ways.
    Break,       // Every connection of `node` is reset, and may be made again.
    Crash,       // The agent is killed: its peers read the end of their connections.
    PowerOff,    // The machine is gone without a word.
    Restart,     // Another agent starts on a machine whose one is gone; on the first it opens
                 // another job of the same name at the endpoint.
    Freeze,      // The agent does nothing (SIGSTOP), then all that waits for it at once.
    FailWorker,  // One of its workers fails, if it has any.
    Preempt,     // SIGTERM.
    NoArbiter,   // What the agent asks of the arbiter fails.
    Unfit,       // From now on the checks of its machine say no, in a job that has them.
    HangReplacement,  // Of workers that its node has lost: what is started neither gets ready nor
                      // ends.
  };
  Kind kind = Kind::Crash;
  Milliseconds at{0};
  int node = 0;
  int other = 0;          // Cut alone.
  Milliseconds lasts{0};  // Cut, Isolate, Freeze, NoArbiter and HangReplacement.
};

struct Scenario {
  int nodes = 3;
  int nodes_min = 2;
  int nodes_max = 3;
  int restarts = 3;
  Milliseconds work{0};    // For how long a round must run to succeed; 0: no job ever ends so.
  std::uint64_t seed = 0;  // Of all delays.
  rendezvous::Arbitration arbitration = rendezvous::Arbitration::None;
  bool elastic = true;  // Otherwise static: all nodes, each with its machine's rank.
  // A node goes on with those of its workers that live, if so many do; 0: its workers cannot park.
  int workers_min = 0;
  bool checks = false;  // Each node checks whether it is fit before it joins and between attempts.
  std::vector<Fault> faults;
};

Scenario random_scenario(std::uint64_t seed,
                         rendezvous::Arbitration arbitration = rendezvous::Arbitration::None);
Scenario random_static_scenario(std::uint64_t seed);
// Nodes of two to four workers that go on with fewer.
Scenario random_shrinking_scenario(std::uint64_t seed);
// Of nodes that check whether they are fit some turn out not to be.
Scenario random_checking_scenario(std::uint64_t seed);

// One line for the job, and one for each fault: "at 1.200 s: cut 0 -> 2 for 3.000 s".
std::string to_text(const Fault& fault);
std::string to_text(const Scenario& scenario);
Scenario parse_scenario(const std::string& text);  // Throws std::invalid_argument.

// A rule of the protocol that the simulated agents break, to see that the checks notice it.
enum class Planted {
  Nothing,
  VotesTwice,         // Two candidates of a term may have an agent's vote.
  IgnoresOlderRound,  // A voter does not care that the candidate's round is older than its own.
  IgnoresQuorum,      // A coordinator goes on when most nodes are out of its sight.
  SettlesTooEarly,    // A round counts as started by all before any of them has heard of it.
  KeepsLeading,       // A coordinator that hears of a later term goes on.
  TakesOldRound,      // What a coordinator says in its term is taken for the first one's words.
  KeepsUnasked,       // Whoever was given the word begins a round without having kept it.
  NeedsNoWord,        // A coordinator that sees half of the round goes on without the word.
  LapsesKept,         // A claim that was kept lapses like any other.
  TakesOldWords,      // What is said of an older term's round of the same number counts.
  KeepsItsWorkers,    // A node starts as many as it has places, whatever the round has for it.
  WaitsForSpare,      // A replacement may take for ever to get ready.
};

struct Outcome {
  std::string violation;  // Empty: none.
  std::size_t events = 0;
  // What the schedule had in it, so that a test can tell whether schedules are worth their time.
  int elections = 0;
  int grown = 0;                   // How often a node asked for the workers that it had lost.
  bool ran_on = false;             // At the end a round ran, or all its workers had succeeded.
  std::vector<std::string> story;  // With `tell`.
};
Outcome run(const Scenario& scenario, Planted planted = Planted::Nothing, bool tell = false);

// Without the faults that it does not need to end in a violation.
Scenario shrink(Scenario scenario, Planted planted = Planted::Nothing);

}  // namespace ddprun::simulation
