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
constexpr auto drain_pause = std::chrono::microseconds{200};

}  // namespace

DeviceWatchdog::DeviceWatchdog(int rank, std::shared_ptr<NcclHandle> handle,
                               const CommunicatorOptions& options)
    : rank_(rank), handle_(std::move(handle)), slow_waits_(options) {}

DeviceWatchdog::~DeviceWatchdog() {
  if (!owner_.is_this()) {
    leave_to_parent(thread_);
    leave_to_parent(changed_);
    return;
  }
  assert(!thread_.joinable() && "the group may be gone, and the thread asks it");
}

void DeviceWatchdog::start(PeerWatch& group) {
  assert(group_ == nullptr);
  group_ = &group;
  others_ = RankSet::all_of(static_cast<int>(group.names().size())) - RankSet{rank_};
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

void DeviceWatchdog::watch(const Call& call, cudaStream_t stream, std::chrono::milliseconds limit) {
  cudaEvent_t spare = nullptr;
  {
    const std::lock_guard lock(mutex_);
    spare = queue_.take_spare();
  }
  cudaEvent_t const end = record_end(spare, stream);
  {
    const std::lock_guard lock(mutex_);
    queue_.add(call, end, now() + limit);
    // What a peer is told that asks: this rank has called. For whom it waits NCCL does not say.
    group_->set_waiting_for(others_);
  }
  wake();
}

bool DeviceWatchdog::drain(Clock::time_point deadline) noexcept {
  std::unique_lock lock(mutex_);
  // The thread that looks need not run yet, or any more.
  while (!queue_.empty() && !group_->aborted() && Clock::now() < deadline) {
    if (queue_.check(now()).kind == DeviceQueue::Finding::Kind::Failed) return false;
    if (!queue_.empty()) changed_.wait_for(lock, drain_pause);
  }
  return queue_.empty() && !group_->aborted();
}

void DeviceWatchdog::run() {
  cudaSetDevice(handle_->device());
  // Or a look while another thread records a graph, in CUDA's default mode, would spoil that graph.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (group_->aborted()) {
      lock.unlock();  // stop() and watch() must not wait for it.
      group_->wait_until_known();
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
    if (finding.kind == DeviceQueue::Finding::Kind::Late) end_late(lock);
    if (group_->aborted()) continue;
    if (queue_.empty()) group_->set_in_no_call();
    changed_.wait_for(lock, queue_.empty() ? 10 * watchdog_pause : watchdog_pause);
  }
}

std::string DeviceWatchdog::find_cause(const std::vector<std::string>& names) {
  const auto answers = group_->ask();
  if (answers.size() == 1) return "the device has not got as far";
  RankSet gone;
  for (std::size_t peer = 0; peer < answers.size(); ++peer) {
    if (group_->departed(static_cast<int>(peer))) gone.insert(static_cast<int>(peer));
  }
  if (!gone.empty()) return names_of(gone, names) + " closed the communicator";
  const Blame blame = find_blame(rank_, others_, answers);
  // All stand in a call, and nobody says in which: the one that is behind may be this one.
  return to_string(blame, names) +
         (blame.circular.empty() ? "" : ", or rank " + std::to_string(rank_) + "'s device hangs");
}

void DeviceWatchdog::tell_slow(const DeviceQueue::Finding& slow) {
  const std::string cause = find_cause(group_->names());
  if (group_->aborted()) return;
  slow_waits_.tell(rank_, slow.waited, to_string(slow.call) + " on the device", cause);
}

void DeviceWatchdog::end_late(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const std::string cause = find_cause({});
  lock.lock();
  const DeviceQueue::Finding late = queue_.check(now());
  if (late.kind != DeviceQueue::Finding::Kind::Late) return;
  group_->abort("rank " + std::to_string(rank_) + ": " + to_string(late.call) + " on the device " +
                slow_waits_.timed_out() + ": " + cause);
}

DeviceQueue::Finding DeviceWatchdog::check_device() {
  const std::string self = "rank " + std::to_string(rank_) + ": ";
  DeviceQueue::Finding finding = queue_.check(now());
  if (finding.kind == DeviceQueue::Finding::Kind::Failed) {
    group_->abort(self + to_string(finding.call) + " on the device failed: " + finding.error +
                  " (in work that it was given before, most likely)");
  }
  const auto state = handle_->state();
  if (!state || *state == ncclSuccess || *state == ncclInProgress) return finding;
  group_->abort(self + ncclGetErrorString(*state) + ": " + ncclGetLastError(nullptr));
  return {};
}

}  // namespace ddprun::worker
