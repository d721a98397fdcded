// Which of this node's places have a worker in the next attempt, where the node may go on with
// fewer than all of them (--nproc-per-node MIN:MAX).
//
// A place is what a process has for as long as it lives: a GPU, CPUs, arguments, a spare. While all
// are filled, place K is local rank K's; with fewer, local ranks count the filled ones, since every
// program takes LOCAL_RANK for a number below LOCAL_WORLD_SIZE.
//
//   all filled --a worker dies--> those whose processes live on --the others are ready--> all
//   filled
//
// Nobody waits for a process that starts: the node goes on with those that can be given a rank at
// once, or, where these are fewer than MIN, with all, some of them started cold.
// A core: no processes or clock.
#pragma once

#include <vector>

namespace ddprun::launcher {

struct LocalPlace {
  bool kept = false;     // Its process is parked, and holds the job's state.
  bool spare = false;    // One that is ready waits for it.
  bool no_hope = false;  // No spare for it will ever be ready (SparePlan).
};

// With how many workers this node goes on, from its places in order.
int workers_at_once(const std::vector<LocalPlace>& places, int workers_min);

// The places that so many workers take, in the order of their local ranks: those of kept processes
// first, so that none of these is lost, then the lowest. A place whose worker is started cold has
// its local rank's number by that, and with it the GPU that the program takes.
std::vector<int> places_for(const std::vector<LocalPlace>& places, int workers);

// Whether an attempt in which `filled` have workers should make way for one with all: each of the
// others is ready, or there is no use in waiting for it.
bool can_grow(const std::vector<LocalPlace>& places, const std::vector<int>& filled);

}  // namespace ddprun::launcher
