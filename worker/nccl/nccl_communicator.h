// The communicator over NCCL, for CUDA devices. Part of the CUDA module.
//
//   NcclCommunicator --> NcclHandle                 ncclAllReduce ... on the caller's stream
//                    --> DeviceWatchdog --> NcclHandle    ncclCommAbort, when work cannot end
//                    --> PeerWatch                  who died or gave up, on all ranks at once
//
// A call returns when it is queued. The communicator is non-blocking: no call of NCCL can hang its
// thread, and every wait has a deadline.
//
// Calls are numbered and checked by the guard of the other communicators, but not announced to the
// other ranks: that would wait for them, where a call of NCCL only queues. So different calls are
// found out when they are late.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <string>

#include "worker/communicator.h"
#include "worker/nccl/device_stopwatch.h"
#include "worker/nccl/device_watchdog.h"
#include "worker/nccl/nccl_connect.h"
#include "worker/nccl/nccl_handle.h"
#include "worker/owning_process.h"
#include "worker/peers/call_guard.h"
#include "worker/peers/slow_wait.h"
#include "worker/peers/watch.h"

namespace ddprun::worker {

class NcclCommunicator final : public Communicator {
 public:
  // Meets the others through the store. Throws CommunicatorError.
  NcclCommunicator(const WorkerEnv& env, const CommunicatorOptions& options)
      : NcclCommunicator(meet_nccl_peers(env, options), options) {}
  NcclCommunicator(NcclPeers peers, const CommunicatorOptions& options);
  // A copy in a forked child, where CUDA and NCCL cannot be used, leaves all as it is.
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string description() const override { return description_; }
  bool is_cuda() const override { return true; }
  std::optional<int> cuda_device() const override { return handle_->device(); }

  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op,
                  Stream stream) override;
  void all_gather(const void* send, void* recv, std::size_t count, DataType type,
                  Stream stream) override;
  void reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                      Stream stream) override;
  void broadcast(void* data, std::size_t count, DataType type, int root, Stream stream) override;
  void send(const void* data, std::size_t count, DataType type, int peer, Stream stream) override;
  void recv(void* data, std::size_t count, DataType type, int peer, Stream stream) override;
  void barrier(Stream stream) override;
  void wait(Stream stream) override { wait_for(last_, stream); }
  void all_gather_on_host(const void* send, void* recv, std::size_t bytes, Stream stream) override;
  std::shared_ptr<void> allocate(std::size_t bytes) override { return handle_->allocate(bytes); }
  void replayed(Stream stream) override;
  void wait_begins(Stream stream) override;
  void wait_ends(Stream stream) override;
  std::chrono::nanoseconds waited() override { return stopwatch_.total(); }
  void abort(const std::string& reason) noexcept override { group_.abort(reason); }
  void abort_unless_told(const std::string& reason) noexcept override {
    group_.abort_unless_told(reason);
  }
  std::optional<std::string> aborted() const override { return group_.reason_if_aborted(); }

 private:
  using Clock = std::chrono::steady_clock;

  void start_nccl(const NcclPeers& peers, int interrupt_fd);
  std::chrono::milliseconds end_time() const;
  // Waits while NCCL works in the background, for `limit` of the time in which this process runs.
  // What went wrong; "": nothing, or the group was aborted meanwhile.
  std::string settle(ncclResult_t result, Clock::duration limit, int interrupt_fd = -1);
  void tell_left_behind() const;
  // Has `function`(communicator, stream) called, and what it queues watched.
  template <typename Function>
  void queue(const Call& call, Stream stream, Function function);
  // Until all that was queued on the stream is done, `call` last.
  void wait_for(const Call& call, Stream stream);
  void watch(const Call& call, Stream stream);
  // What the peers have called, too, and wait for, must end them where it fails here: CUDA answers
  // with the errors of kernels that were launched long before.
  void require_cuda(cudaError_t status, const Call& call, const std::string& function);
  [[noreturn]] void fail(const Call& call, const std::string& problem);
  void gather_by_device(const void* send, void* recv, std::size_t bytes, Stream stream);

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  const SlowWaitTeller teller_;
  std::string description_;
  const std::shared_ptr<NcclHandle> handle_;
  DeviceStopwatch stopwatch_;
  DeviceWatchdog watchdog_;
  PeerWatch group_;  // After the watchdog, which its thread wakes.
  CallGuard guard_;
  const OwningProcess owner_;
  Call last_;  // Of those that were queued, and of those that went into a graph.
  Call recorded_;
  std::shared_ptr<void> barrier_word_;
};

}  // namespace ddprun::worker
