// The store of a job's workers, hosted by rank 0 where no launcher hosts one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rendezvous/long_wait.h"
#include "rendezvous/store_client.h"
#include "worker/communicator.h"

namespace ddprun::worker {

struct StoreEndpoint {
  std::string host;
  std::uint16_t port = 0;
};

// Where the store of env's job is. Rank 0 hosts it first, if env says that no launcher does; it
// lives as long as the process, because others may come to their first communicator late; where the
// port is taken, a store must answer there. With env.rendezvous_file waits until the file leads to
// it. Throws CommunicatorError.
StoreEndpoint open_store(const WorkerEnv& env, const CommunicatorOptions& options);

// Whether nobody of another host can reach the store that rank 0 hosts: its address is a loopback
// one.
bool meets_on_one_host(const WorkerEnv& env);

// How to reach that store, and whom messages ask about where nobody answers.
rendezvous::StoreClientOptions store_client_options(const WorkerEnv& env,
                                                    const CommunicatorOptions& options);

// What a rank says that waits to meet the others: to options.on_slow_wait, with the limit.
rendezvous::WaitWords meeting_words(const WorkerEnv& env, const CommunicatorOptions& options);

// Those whose key, element r that of rank r, is not in the store.
std::vector<int> missing_ranks(rendezvous::StoreClient& store,
                               const std::vector<std::string>& keys);

// Waits until all of these keys are in the store; returns those whose key is not there at
// `deadline`. When `wait` is due, on_slow_wait hears `who(missing)`: "rank 1 of 2 did not come
// yet".
std::vector<int> wait_for_ranks(rendezvous::StoreClient& store,
                                const std::vector<std::string>& keys, rendezvous::LongWait wait,
                                std::chrono::steady_clock::time_point deadline,
                                const std::function<std::string(const std::vector<int>&)>& who);

}  // namespace ddprun::worker
