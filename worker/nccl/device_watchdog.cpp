// The thread that looks. It polls, because neither CUDA nor NCCL can wake a thread of the host when
// work is done or has failed without taking part in that work's stream.
#include "worker/nccl/device_watchdog.h"

#include <cassert>
#include <string>
#include <utility>

#include "worker/communicator.h"

namespace ddprun::worker {
namespace {

constexpr auto watchdog_pause = std::chrono::milliseconds{20};
constexpr auto answer_time = std::chrono::milliseconds{500};  // To say that a process is alive.

}  // namespace

DeviceWatchdog::DeviceWatchdog(int rank, std::shared_ptr<NcclHandle> handle,
                               const CommunicatorOptions& options)
    : rank_(rank), handle_(std::move(handle)), slow_waits_(options) {}

DeviceWatchdog::~DeviceWatchdog() {
  assert(!thread_.joinable() && "the group may be gone, and the thread asks it");
}

void DeviceWatchdog::start(PeerWatch& group) {
  assert(group_ == nullptr);
  group_ = &group;
  thread_ = std::thread([this] { run(); });
}

void DeviceWatchdog::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

// Work that is recorded into a graph has not started; its replay is the caller's to watch.
void DeviceWatchdog::watch(const Call& call, cudaStream_t stream, Clock::time_point deadline) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) return;
  {
    const std::lock_guard lock(mutex_);
    queue_.add(call, stream, deadline);
  }
  wake();
}

void DeviceWatchdog::run() {
  cudaSetDevice(handle_->device());
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (group_->aborted()) {
      lock.unlock();  // It waits for kernels, and stop() and watch() must not wait for those.
      handle_->abort();
      return;
    }
    const DeviceQueue::Finding finding = check_device();
    if (finding.kind == DeviceQueue::Finding::Kind::Slow) {
      lock.unlock();  // Asking the others takes a moment.
      tell_slow(finding);
      lock.lock();
      continue;
    }
    if (group_->aborted()) continue;
    changed_.wait_for(lock, queue_.empty() ? 10 * watchdog_pause : watchdog_pause);
  }
}

// The device does not say whom it waits for; a process that does not even answer is most likely the
// one.
void DeviceWatchdog::tell_slow(const DeviceQueue::Finding& slow) {
  const auto answers = group_->ask(Clock::now() + answer_time);
  if (group_->aborted()) return;
  const auto names = group_->names();
  std::string silent;
  for (std::size_t peer = 0; peer < answers.size(); ++peer) {
    if (static_cast<int>(peer) == rank_ || answers[peer]) continue;
    silent += (silent.empty() ? "" : ", ") + names[peer];
  }
  slow_waits_.tell(rank_, slow.since, to_string(slow.call) + " on the device",
                   silent.empty() ? "a peer is busy, blocked or called something else"
                                  : silent + " did not answer (stopped, or cut off)");
}

DeviceQueue::Finding DeviceWatchdog::check_device() {
  const std::string self = "rank " + std::to_string(rank_) + ": ";
  DeviceQueue::Finding finding = queue_.check(Clock::now());
  const auto work = [&] { return self + to_string(finding.call) + " on the device "; };
  if (finding.kind == DeviceQueue::Finding::Kind::Late) {
    group_->abort(work() + slow_waits_.timed_out() +
                  ": a peer is stopped, blocked or called something else");
  } else if (finding.kind == DeviceQueue::Finding::Kind::Failed) {
    group_->abort(work() + "failed: " + finding.error);
  }
  const auto state = handle_->state();
  if (!state || *state == ncclSuccess || *state == ncclInProgress) return finding;
  group_->abort(self + ncclGetErrorString(*state) + ": " + ncclGetLastError(nullptr));
  return {};
}

}  // namespace ddprun::worker
