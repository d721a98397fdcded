// Carries reductions out in the order of their submission while the caller goes on computing.
//
//   backward:  layer4 --- layer3 --- layer2 --- layer1 --- wait()
//                 \          \          \          \         |
//   queue:         bucket 0   bucket 1   ...        last ----+
//
// CPU: a thread of its own that calls the communicator. CUDA: a stream of its own, ordered with the
// computing stream by events; the host never waits. While work is queued the communicator must
// not be used past the queue.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "worker/communicator.h"

namespace ddprun::worker {

class ReductionQueue {
 public:
  virtual ~ReductionQueue() = default;
  ReductionQueue() = default;
  ReductionQueue(const ReductionQueue&) = delete;
  ReductionQueue& operator=(const ReductionQueue&) = delete;

  // Queues one all-reduce of `count` elements in place. The memory must stay until wait(). Throws
  // CommunicatorError if an earlier one failed: a failed queue stays failed.
  virtual void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op) = 0;

  // The same for what takes more than an all-reduce. CPU: `work` is called in the queue's thread.
  // CUDA: at once, with the queue's stream as the current one. Autograd and autocast are off.
  using Work = std::function<void(Communicator& communicator)>;
  virtual void run(Work work) = 0;

  // CPU: returns when all results are there. CUDA: what the caller queues next on the current
  // stream sees them. Throws the first error. Bounded by the communicator's collective_timeout.
  virtual void wait() = 0;

  virtual bool idle() const = 0;  // Nothing is queued or running.

  // Time that wait() has held up since the start what its callers do next: communication that no
  // computation hid. On CUDA it is the current stream that stands, not the host, which knows of
  // what the device is past (Communicator::waited).
  virtual std::chrono::nanoseconds exposed() const = 0;

  // The same since the last call.
  std::chrono::nanoseconds take_exposed() {
    const auto now = exposed();
    return now - std::exchange(taken_, now);
  }

 private:
  std::chrono::nanoseconds taken_{0};
};

// The communicator's queue: the same for all who ask while one of them holds it, so that whoever
// reduces while backward computes does so in one order. The communicator must outlive its calls,
// and has one device. The destructor ends the work at hand by aborting the communicator, so it
// never hangs and peers learn of it.
std::shared_ptr<ReductionQueue> reduction_queue_of(Communicator& communicator, c10::Device device);

}  // namespace ddprun::worker
