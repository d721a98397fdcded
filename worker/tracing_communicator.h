// A communicator that tells a tracer when each collective begins and ends, for traces. It adds
// nothing to the collectives themselves and works over every other communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker/communicator.h"

namespace ddprun::worker {

struct Collective {
  const char* name = "";  // "all_reduce"
  std::size_t bytes = 0;  // Of this rank's contribution; 0 for a barrier.
  Stream stream = nullptr;
};

// Both are called on the thread that calls the collective.
class CollectiveTracer {
 public:
  virtual ~CollectiveTracer() = default;

  // What it returns is given to collective_ends().
  virtual std::int64_t collective_begins(const Collective& collective) = 0;

  // Also after a collective that threw. On CUDA the collective has been queued on its stream.
  virtual void collective_ends(const Collective& collective, std::int64_t begun) noexcept = 0;
};

// The tracer must outlive the result.
std::unique_ptr<Communicator> trace(std::unique_ptr<Communicator> communicator,
                                    CollectiveTracer& tracer);

}  // namespace ddprun::worker
