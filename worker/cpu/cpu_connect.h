// From a rank and a way to exchange addresses to the connected peers of a CPU communicator.
//
//   1. listen, create the shared segment          -> exchange addresses
//   2. map the segments of ranks on this machine  -> exchange who could map whom
//   3. connect to all                             -> two ranks share memory if both could map
#pragma once

#include <cstdint>

#include "rendezvous/attempt_name.h"
#include "worker/cpu/cpu_peers.h"
#include "worker/peers/exchange.h"

namespace ddprun::worker {

// Addresses go through `exchange`, which is not kept. Throws CommunicatorError.
CpuPeers::Parts connect_cpu_peers(int rank, int world_size, rendezvous::Epoch epoch,
                                  AddressExchange& exchange, const CpuCommunicatorOptions& options);

// The same through the job's store, which a world of one does not need.
CpuPeers::Parts meet_cpu_peers(const WorkerEnv& env, CpuCommunicatorOptions options);

// Ahead of either: what needs no peer, and takes the most time. For whoever waits for a rank, and
// need not know whether it will want a communicator on the CPU. Any thread.
void prepare_cpu_peers();

}  // namespace ddprun::worker
