// Ends NCCL's communicator where nothing else would: a kernel that waits for a dead peer ends only
// when the communicator is aborted, and the thread that queued it may wait for the device.
//
//   oldest work not done in time, or failed --+--> PeerWatch::abort(reason), so that every call
//   NCCL's own error                        --+    says why; only then, and so also for the reasons
//   a peer's death or abort, our abort()    -----> that come from elsewhere: ncclCommAbort
//
// In that order, because an aborted kernel looks like one that succeeded; and not before all peers
// know of it, because such a kernel also posts to its peers what it never wrote (postPeer() of
// NCCL's prims_simple), so that theirs end with anything in their memory.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/nccl/device_queue.h"
#include "worker/nccl/nccl_handle.h"
#include "worker/owning_process.h"
#include "worker/peers/awake_time.h"
#include "worker/peers/frame.h"
#include "worker/peers/slow_wait.h"
#include "worker/peers/watch.h"

namespace ddprun::worker {

class DeviceWatchdog {
 public:
  using Clock = std::chrono::steady_clock;

  DeviceWatchdog(int rank, std::shared_ptr<NcclHandle> handle, const CommunicatorOptions& options);
  ~DeviceWatchdog();
  DeviceWatchdog(const DeviceWatchdog&) = delete;
  DeviceWatchdog& operator=(const DeviceWatchdog&) = delete;

  // Once, when there is a communicator. `group` must stay until stop().
  void start(PeerWatch& group);
  // Before this object ends. Nothing is aborted from then on.
  void stop() noexcept;
  // The group was aborted. Does not block; from any thread, also before start().
  void wake() noexcept { changed_.notify_all(); }

  // `call` has been queued on `stream`, and must be done in `limit` of the time in which this
  // process runs (awake_time.h). Throws CommunicatorError.
  void watch(const Call& call, cudaStream_t stream, std::chrono::milliseconds limit);
  // Waits until all that is watched is done. False: it was aborted, or is not done at `deadline`.
  bool drain(Clock::time_point deadline) noexcept;

 private:
  void run();
  DeviceQueue::Finding check_device();  // Aborts where work failed.
  Clock::time_point now() { return awake_.at(Clock::now()); }
  void tell_slow(const DeviceQueue::Finding& slow);
  // Asks the others first, and aborts if the work is still not done.
  void end_late(std::unique_lock<std::mutex>& lock);
  // Whom work on the device waits for; the device does not say. Takes a moment.
  std::string find_cause(const std::vector<std::string>& names);

  const int rank_;
  const std::shared_ptr<NcclHandle> handle_;
  const SlowWaitTeller slow_waits_;

  std::mutex mutex_;  // Guards queue_, awake_ and stop_.
  std::condition_variable changed_;
  DeviceQueue queue_{slow_waits_};
  AwakeTime awake_;
  bool stop_ = false;

  PeerWatch* group_ = nullptr;  // Null before start().
  RankSet others_;              // All ranks but this one.
  const OwningProcess owner_;
  std::thread thread_;
};

}  // namespace ddprun::worker
