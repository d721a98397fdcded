// Work that was queued on the device and is not known to be done. Calls of NCCL return once they
// are queued, so that whether they ended, are late or failed is asked of an event behind each.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "worker/owning_process.h"
#include "worker/peers/frame.h"
#include "worker/peers/slow_wait.h"

namespace ddprun::worker {

// An event behind what `stream` has been given so far: `spare`, or a new one where that is null.
// Not to be called with a lock that an abort needs: CUDA keeps the caller where the stream's queue
// is full, and behind a peer that hangs only an abort makes room. Throws CommunicatorError; `spare`
// is gone then.
cudaEvent_t record_end(cudaEvent_t spare, cudaStream_t stream);

// Not safe from several threads: its owner has the lock.
class DeviceQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit DeviceQueue(const SlowWaitTeller& slow_waits) : slow_waits_(slow_waits) {}
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // An event to be recorded, or null where there is none to be had again.
  cudaEvent_t take_spare();
  // `end` is recorded behind `call`, and is this object's from here on.
  void add(const Call& call, cudaEvent_t end, Clock::time_point deadline);
  bool empty() const { return queued_.empty(); }

  // What is wrong with the oldest work now.
  struct Finding {
    enum class Kind { Fine, Slow, Late, Failed } kind = Kind::Fine;
    Call call;                 // Which work.
    Clock::duration waited{};  // Slow: since it was first seen to be the oldest; said once.
    std::string error;         // Failed: in CUDA's words.
  };
  // Drops what is done, up to the first that is not.
  Finding check(Clock::time_point now);

 private:
  struct Queued {
    cudaEvent_t done;
    Clock::time_point deadline;
    Call call;
  };
  const OwningProcess owner_;
  const SlowWaitTeller& slow_waits_;
  std::deque<Queued> queued_;
  std::vector<cudaEvent_t> spare_events_;
  Clock::time_point stalled_since_{};  // {}: the oldest was not seen unfinished yet.
  bool stall_told_ = false;
};

}  // namespace ddprun::worker
