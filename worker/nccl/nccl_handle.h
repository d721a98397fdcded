// NCCL's communicator as several threads share it: calls, the watchdog's abort, and memory that is
// given back anywhere. Part of the CUDA module.
//
// Nothing that may wait for the device happens under the lock. ncclCommAbort waits for kernels to
// end, and cudaFree for all kernels; one of these may wait for a dead peer until the watchdog
// aborts.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace ddprun::worker {

class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  using Clock = std::chrono::steady_clock;

  explicit NcclHandle(int device) : device_(device) {}
  // The communicator must have been ended: nobody else knows it.
  ~NcclHandle() { assert(comm_ == nullptr); }
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
  // What NCCL says of its work in the background. Empty: there is no communicator any more.
  std::optional<ncclResult_t> state();

  // Ends the kernels that are running, too. Safe from any thread; later calls find no communicator.
  void abort() noexcept;
  // The orderly end: flushes what is queued. Aborts at `deadline`, or when `aborted` says so.
  void finish(Clock::time_point deadline, const std::function<bool()>& aborted) noexcept;

  // Device memory, registered with NCCL where that can be. Keeps this object; can be given back in
  // any thread. Throws CommunicatorError.
  std::shared_ptr<void> allocate(std::size_t bytes);

 private:
  struct Memory {
    void* data = nullptr;
    void* registration = nullptr;  // Null: not registered. It works too, only slower.
    bool of_nccl = false;          // Otherwise of cudaMalloc.
  };
  void release(const Memory& memory) noexcept;
  ncclComm_t
  take() noexcept;  // The communicator, for whoever ends it; must be followed by ended().
  void ended() noexcept;

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  ncclComm_t comm_ = nullptr;
  bool ending_ = false;  // Taken, and not at its end yet.
};

// Throws CommunicatorError: "WHAT: CUDA's words".
void check_cuda(cudaError_t status, const std::string& what);

}  // namespace ddprun::worker
