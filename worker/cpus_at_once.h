// How many threads can get on at the same time.
#pragma once

namespace ddprun::worker {

// The CPUs that this process may run on, or fewer where a container's quota of CPU time is less; at
// least 1. More computing threads than that use up the quota by waiting for each other, and stand
// still for the rest of each period. Some hundred microseconds.
int cpus_at_once();

}  // namespace ddprun::worker
