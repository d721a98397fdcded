// Events behind queued work, used again and again: to make one takes longer than to record it.
#include "worker/nccl/device_queue.h"

#include "worker/nccl/nccl_handle.h"

namespace ddprun::worker {

cudaEvent_t record_end(cudaEvent_t spare, cudaStream_t stream) {
  cudaEvent_t end = spare;
  if (end == nullptr) {
    check_cuda(cudaEventCreateWithFlags(&end, cudaEventDisableTiming), "cudaEventCreate");
  }
  const cudaError_t status = cudaEventRecord(end, stream);
  if (status != cudaSuccess) cudaEventDestroy(end);
  check_cuda(status, "cudaEventRecord");
  return end;
}

DeviceQueue::~DeviceQueue() {
  if (!owner_.is_this()) return;
  for (const Queued& queued : queued_) cudaEventDestroy(queued.done);
  for (cudaEvent_t event : spare_events_) cudaEventDestroy(event);
}

cudaEvent_t DeviceQueue::take_spare() {
  if (spare_events_.empty()) return nullptr;
  cudaEvent_t spare = spare_events_.back();
  spare_events_.pop_back();
  return spare;
}

void DeviceQueue::add(const Call& call, cudaEvent_t end, Clock::time_point deadline) {
  queued_.push_back({end, deadline, call});
}

DeviceQueue::Finding DeviceQueue::check(Clock::time_point now) {
  for (; !queued_.empty(); queued_.pop_front()) {
    const Queued& oldest = queued_.front();
    const cudaError_t status = cudaEventQuery(oldest.done);
    if (status == cudaErrorNotReady) {
      if (stalled_since_ == Clock::time_point{}) stalled_since_ = now;
      if (now >= oldest.deadline)
        return {Finding::Kind::Late, oldest.call, now - stalled_since_, ""};
      if (!slow_waits_.is_due(stalled_since_, stall_told_, now)) return {};
      stall_told_ = true;
      return {Finding::Kind::Slow, oldest.call, now - stalled_since_, ""};
    }
    // Of a kernel before it, most likely: the device takes no more work after an error, and says it
    // to whoever asks next.
    if (status != cudaSuccess) {
      return {Finding::Kind::Failed, oldest.call, {}, cudaGetErrorString(status)};
    }
    spare_events_.push_back(oldest.done);
    stalled_since_ = {};
    stall_told_ = false;
  }
  return {};
}

}  // namespace ddprun::worker
