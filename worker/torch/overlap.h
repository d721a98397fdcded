// Is it worth reducing gradients while backward still computes?
//
// What is hidden is waiting: for a network, for another device. Between workers on the CPUs of one
// host an all-reduce is work of the same cores. Then it can be hidden only on a core that has
// nothing else to do; elsewhere it takes turns with backward, and both lose what they had in their
// caches (docs/performance.md has the figures).
#pragma once

#include "worker/communicator.h"

namespace ddprun::worker {

struct OverlapFacts {
  int world_size = 1;
  int local_world_size = 1;  // Workers on this host; 0: not known.
  int cores = 1;             // That this process may run on, and its neighbours too.
  int threads = 1;           // That compute in each worker.
};

// CPU only; on CUDA always. Core of the decision, for this rank.
bool overlap_pays(const OverlapFacts& facts);

// The same answer on all ranks: yes if it pays for one of them, since all must reduce the same
// buckets. Collective.
bool overlap_pays_anywhere(Communicator& communicator, const OverlapFacts& facts);

// The cores that this thread may run on, by its affinity.
int usable_cores();

}  // namespace ddprun::worker
