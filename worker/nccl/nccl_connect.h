// From a rank and a way to exchange addresses to what an NCCL communicator starts with: NCCL's id,
// and a watched connection to every other rank.
//
// NCCL connects its ranks by itself. The connections made here carry no data: they are how a rank
// learns at once that another died or gave up, which NCCL does not tell.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "worker/communicator.h"
#include "worker/peers/exchange.h"
#include "worker/peers/watch.h"

namespace ddprun::worker {

// The ranks, met. Those of a world of one have nobody to meet.
struct NcclPeers {
  int rank = 0;
  int world_size = 1;
  int device = 0;
  std::chrono::steady_clock::time_point deadline;  // For NCCL's own connecting, too.
  ncclUniqueId id{};                               // Rank 0's, on all ranks.
  std::vector<PeerWatch::Peer> watched;            // Element r is rank r.
};

// Addresses go through `exchange`, which is not kept. Throws CommunicatorError; before anything is
// exchanged where options.cuda_device, or by default the first, cannot be used.
NcclPeers connect_nccl_peers(int rank, int world_size, Epoch epoch, AddressExchange& exchange,
                             const CommunicatorOptions& options);

// The same through the job's store, which a world of one does not need; by default with the device
// of the local rank.
NcclPeers meet_nccl_peers(const WorkerEnv& env, CommunicatorOptions options);

}  // namespace ddprun::worker
