// Workers that were started by hand, or by a launcher that says nothing about hosts (srun), find
// out together what torchrun and ddprun would have told them.
//
//   WorkerEnv env = read_worker_env(InitMethod{.url = "file:///shared/run7", .rank = 1,
//                                              .world_size = 4});
//   env = meet_workers(env);                    // Collective: all workers of the job.
//   auto communicator = make_cpu_communicator(env);
#pragma once

#include "worker/communicator.h"
#include "worker/worker_env.h"

namespace ddprun::worker {

// True if something is missing in `env` that only the other workers know.
bool needs_meeting(const WorkerEnv& env);

// Returns `env` with the store's address, local rank, local world size and group filled in; as it
// is when nothing is missing. Workers are of one host if boot, host name and network are the same.
// Throws CommunicatorError that names the ranks that did not come in time, a rank that there is
// twice, or a worker that was told another world size.
WorkerEnv meet_workers(const WorkerEnv& env, const CommunicatorOptions& options = {});

}  // namespace ddprun::worker
