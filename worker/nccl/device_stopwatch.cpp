// Events that tell the time, used again and again, and what may be asked of them while some thread
// captures a graph.
#include "worker/nccl/device_stopwatch.h"

#include <utility>

namespace ddprun::worker {
namespace {

// A look at an event would otherwise spoil a graph that this thread or another one records.
class LooksAllowed {
 public:
  LooksAllowed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~LooksAllowed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  LooksAllowed(const LooksAllowed&) = delete;
  LooksAllowed& operator=(const LooksAllowed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

DeviceStopwatch::~DeviceStopwatch() {
  if (!owner_.is_this()) return;
  for (const Wait& wait : queued_) wait.leave_events(spare_);
  for (const Wait& wait : recorded_) wait.leave_events(spare_);
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
  for (cudaEvent_t event : older_) cudaEventDestroy(event);
  for (cudaEvent_t event : {begun_, replays_end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

bool DeviceStopwatch::succeeds(cudaError_t status) {
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // That of a broken device stays.
  broken_ = true;
  return false;
}

void DeviceStopwatch::begin(cudaStream_t stream) {
  if (broken_ || !follow_capture(stream)) return;
  if (!into_) look();  // Or events that nobody reads would become more and more.
  // What was begun and never ended has thrown.
  if (begun_ != nullptr) older_.push_back(std::exchange(begun_, nullptr));
  begun_ = record(stream);
}

void DeviceStopwatch::end(cudaStream_t stream) {
  if (broken_ || begun_ == nullptr) return;
  cudaEvent_t const to = record(stream);
  if (to == nullptr) return;
  const Wait wait{std::exchange(begun_, nullptr), to};
  if (into_) {
    recorded_.push_back(wait);
  } else {
    queued_.push_back(wait);
  }
}

// False: CUDA does not say whether the stream is captured.
bool DeviceStopwatch::follow_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (!succeeds(cudaStreamGetCaptureInfo(stream, &status, &id))) return false;
  into_.reset();
  if (status != cudaStreamCaptureStatusActive) return true;
  into_ = id;
  if (id == recorded_in_) return true;
  recorded_in_ = id;
  for (const Wait& wait : std::exchange(recorded_, {})) wait.leave_events(older_);
  replays_ = 0;
  return true;
}

cudaEvent_t DeviceStopwatch::record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  if (!spare_.empty()) {
    event = spare_.back();
    spare_.pop_back();
  } else if (!succeeds(cudaEventCreateWithFlags(&event, cudaEventDefault))) {
    return nullptr;
  }
  // Without the flag a captured event orders streams, and is no node that takes the time. CUDA
  // knows the flag in a capture alone.
  if (succeeds(into_ ? cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal)
                     : cudaEventRecord(event, stream)))
    return event;
  cudaEventDestroy(event);
  return nullptr;
}

void DeviceStopwatch::replayed(cudaStream_t stream) {
  if (broken_ || recorded_.empty()) return;
  into_.reset();
  if (replays_end_ == nullptr &&
      !succeeds(cudaEventCreateWithFlags(&replays_end_, cudaEventDisableTiming)))
    return;
  if (succeeds(cudaEventRecord(replays_end_, stream))) ++replays_;
}

std::chrono::nanoseconds DeviceStopwatch::total() {
  if (!broken_ && !into_) look();
  return total_;
}

bool DeviceStopwatch::is_done(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status != cudaErrorNotReady) return succeeds(status);
  cudaGetLastError();  // Some versions keep it for whoever asks next.
  return false;
}

void DeviceStopwatch::look() {
  const LooksAllowed allowed;
  for (; !queued_.empty() && is_done(queued_.front().to); queued_.pop_front()) {
    add(queued_.front(), 1);
    queued_.front().leave_events(spare_);
  }
  if (replays_ == 0 || broken_ || !is_done(replays_end_)) return;
  for (const Wait& wait : recorded_) add(wait, replays_);
  replays_ = 0;
}

void DeviceStopwatch::add(const Wait& wait, int times) {
  float ms = 0;
  if (!succeeds(cudaEventElapsedTime(&ms, wait.from, wait.to))) return;
  const std::chrono::duration<double, std::milli> one(ms);
  total_ += std::chrono::duration_cast<std::chrono::nanoseconds>(one * times);
}

}  // namespace ddprun::worker
