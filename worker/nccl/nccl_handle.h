// NCCL's communicator as several threads share it: calls, the watchdog's abort, and memory that is
// given back anywhere. Part of the CUDA module.
//
// Nothing that may wait for the device happens under the lock. ncclCommAbort waits for kernels to
// end, and who gives memory back for all kernels; one of these may wait for a dead peer until the
// watchdog aborts.
//
// Whoever ends the communicator has a thread do it, and waits for that only so long: both
// ncclCommDestroy and ncclCommAbort wait without a limit for every CUDA graph that has recorded a
// call to be destroyed, and for a device that may not answer any more.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "worker/owning_process.h"

namespace ddprun::worker {

class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  using Clock = std::chrono::steady_clock;

  // NCCL's end is waited for, and memory kept for it, so long at most.
  static constexpr std::chrono::milliseconds end_time_usual{10'000};
  // `work_time_max`: what the device was given before takes no longer, collectives too.
  explicit NcclHandle(int device, std::chrono::milliseconds end_time_max = end_time_usual,
                      std::chrono::milliseconds work_time_max = end_time_usual)
      : device_(device), end_time_max_(end_time_max), work_time_max_(work_time_max) {}
  // The communicator must have been ended: nobody else knows it.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  int device() const { return device_; }

  ncclResult_t start(const ncclUniqueId& id, int rank, int world_size);
  // call(comm), one thread at a time. Once there is no communicator it is not called, and the
  // result is ncclSuccess: whoever ended it has said why (PeerWatch).
  template <typename Call>
  ncclResult_t call(Call call) {
    const std::lock_guard lock(mutex_);
    return comm_ == nullptr ? ncclSuccess : call(comm_);
  }
  // The call at hand was given up, and NCCL may still hand it to the device in the background: no
  // memory is given back until the communicator, which somebody is to abort, has ended.
  void leave_call() noexcept;
  // What NCCL says of its work in the background. Empty: there is no communicator any more.
  std::optional<ncclResult_t> state();

  // Ends the kernels that are running, too. Does not wait for it. Safe from any thread; later calls
  // find no communicator.
  void abort() noexcept;
  // The orderly end: flushes what is queued. Aborts at `deadline`, or when `aborted` says so.
  void finish(Clock::time_point deadline, const std::function<bool()>& aborted) noexcept;
  // False: NCCL still waits after the time for it, and is left behind.
  bool wait_for_end() noexcept;

  // Device memory, registered with NCCL where that can be. Keeps this object; can be given back in
  // any thread. Throws CommunicatorError, also where the device does not answer; memory that it may
  // still use then is left behind.
  std::shared_ptr<void> allocate(std::size_t bytes);

 private:
  struct Memory {
    void* data = nullptr;
    void* registration = nullptr;  // Null: not registered. It works too, only slower.
    bool of_nccl = false;          // Otherwise of cudaMalloc.
  };
  void release(const Memory& memory) noexcept;
  // What CUDA says of it. Empty: it has not come to an end of its work in time, and is not waited
  // for again.
  std::optional<cudaError_t> wait_for_device() noexcept;
  ncclComm_t take() noexcept;  // The communicator, for whoever ends it; must be followed by end().
  void end(ncclComm_t comm, ncclResult_t (*how)(ncclComm_t)) noexcept;
  void ended() noexcept;

  const OwningProcess owner_;
  const int device_;
  const std::chrono::milliseconds end_time_max_;
  const std::chrono::milliseconds work_time_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  ncclComm_t comm_ = nullptr;
  bool ending_ = false;        // Taken, and not at its end yet.
  bool left_in_call_ = false;  // To be taken.
  bool device_hangs_ = false;
  Clock::time_point ending_since_{};
};

// Throws CommunicatorError: "WHAT: CUDA's words".
void check_cuda(cudaError_t status, const std::string& what);

}  // namespace ddprun::worker
