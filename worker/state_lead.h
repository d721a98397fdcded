// Whose state does a new attempt go on from, where workers have lived through the one before?
//
//   rank 0  step 41                     an optimizer step is applied by each rank by itself, after
//   rank 1  step 42  <- lead            the reduction: a rank that was thrown out of its end is one
//   rank 2  none (a new process)        step behind
//
// Nobody goes back: whoever is furthest gives its state to those behind. It has applied the
// gradients of all ranks, so no work of the others is lost or done twice; and where all who had
// applied a step are gone, it is done again from the same state (`train --shards`: to the same
// bits). So there is no vote before a step is applied, which would cost each step a wait for all.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::worker {

// How far the state is that a rank holds in memory: whole steps, and what may have been done since
// the last one (the end of an epoch with its validation), where that belongs to the state.
struct StatePosition {
  std::int64_t step = -1;  // -1: it holds none.
  std::int64_t epoch = -1;

  auto operator<=>(const StatePosition&) const = default;
};

struct StateLead {
  bool any = false;        // False: all begin as ever, from a checkpoint or from the seed.
  int root = 0;            // The lowest of the ranks that are furthest.
  bool complete = true;    // Nobody is behind: nothing is to be given.
  StatePosition position;  // Of root.

  bool leads(const StatePosition& of_rank) const { return any && of_rank == position; }
};

// By rank; at least one.
StateLead find_lead(const std::vector<StatePosition>& ranks);

}  // namespace ddprun::worker
