// Events behind queued work, used again and again: to make one takes longer than to record it.
#include "worker/nccl/device_queue.h"

#include "worker/nccl/nccl_handle.h"

namespace ddprun::worker {

DeviceQueue::~DeviceQueue() {
  if (!owner_.is_this()) return;
  for (const Queued& queued : queued_) cudaEventDestroy(queued.done);
  for (cudaEvent_t event : spare_events_) cudaEventDestroy(event);
}

void DeviceQueue::add(const Call& call, cudaStream_t stream, Clock::time_point deadline) {
  if (spare_events_.empty()) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    spare_events_.push_back(event);
  }
  check_cuda(cudaEventRecord(spare_events_.back(), stream), "cudaEventRecord");
  queued_.push_back({spare_events_.back(), deadline, call});
  spare_events_.pop_back();
}

DeviceQueue::Finding DeviceQueue::check(Clock::time_point now) {
  for (; !queued_.empty(); queued_.pop_front()) {
    const Queued& oldest = queued_.front();
    const cudaError_t status = cudaEventQuery(oldest.done);
    if (status == cudaErrorNotReady) {
      if (stalled_since_ == Clock::time_point{}) stalled_since_ = now;
      if (now >= oldest.deadline) return {Finding::Kind::Late, oldest.call, stalled_since_, ""};
      if (!slow_waits_.is_due(stalled_since_, stall_told_, now)) return {};
      stall_told_ = true;
      return {Finding::Kind::Slow, oldest.call, stalled_since_, ""};
    }
    // Of a kernel before it, most likely: the device takes no more work after an error, and says it
    // to whoever asks next.
    if (status != cudaSuccess) {
      return {Finding::Kind::Failed, oldest.call, stalled_since_, cudaGetErrorString(status)};
    }
    spare_events_.push_back(oldest.done);
    stalled_since_ = {};
    stall_told_ = false;
  }
  return {};
}

}  // namespace ddprun::worker
