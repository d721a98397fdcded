// See overlap.h.
#include "worker/torch/overlap.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <thread>

namespace ddprun::worker {

bool overlap_pays(const OverlapFacts& facts) {
  if (facts.world_size > facts.local_world_size) return true;  // There is a network to wait for.
  // A core for each worker's reductions beside those that compute.
  return facts.cores >= facts.local_world_size * (facts.threads + 1);
}

bool overlap_pays_anywhere(Communicator& communicator, const OverlapFacts& facts) {
  if (communicator.is_cuda()) return true;
  std::int32_t answer = overlap_pays(facts) ? 1 : 0;
  communicator.all_reduce(&answer, 1, DataType::Int32, ReduceOp::Max);
  return answer != 0;
}

int usable_cores() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace ddprun::worker
