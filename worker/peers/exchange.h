// How ranks learn each other's addresses before they are connected: every rank gives a text, every
// rank gets the texts of all.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/long_wait.h"
#include "worker/communicator.h"

namespace ddprun::worker {

class AddressExchange {
 public:
  virtual ~AddressExchange() = default;

  // Collective: rank r's text is element r of the result on every rank. Throws CommunicatorError,
  // naming the ranks that did not come before `deadline`.
  virtual std::vector<std::string> all_gather(const std::string& mine,
                                              std::chrono::steady_clock::time_point deadline) = 0;

  // The address under which this process reaches the others; peers may connect to it.
  virtual std::string local_address() const = 0;

  // What is said while peers are waited for, also where that is not through the exchange.
  virtual rendezvous::WaitWords wait_words() const { return {}; }
};

// Throws CommunicatorError where `env` is of some of the job's ranks and options.group does not
// name them, or cannot. Before anybody is met; a world of one meets nobody, and needs no name.
void check_group(const WorkerEnv& env, const CommunicatorOptions& options);

// Through the job's store. Keys carry the attempt with its term and the group, and count this
// rank's communicators, so that neither another attempt or group nor an earlier communicator of
// this one is read by mistake. Where no launcher hosts the store, rank 0 does (worker_store.h).
// Throws CommunicatorError when the store cannot be reached.
std::unique_ptr<AddressExchange> make_store_exchange(const WorkerEnv& env,
                                                     const CommunicatorOptions& options);

}  // namespace ddprun::worker
