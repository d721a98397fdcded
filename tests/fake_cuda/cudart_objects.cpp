// The thread of a stream, and what a device does that is broken.
#include "tests/fake_cuda/cudart_objects.h"

#include <pthread.h>

#include <atomic>
#include <iterator>
#include <thread>
#include <utility>

#include "tests/fake_cuda/switches.h"

using ddprun::fake_cuda::number_of;
using ddprun::fake_cuda::switched;

namespace {

std::atomic<long> pieces_done{0};
// A forked rank has a device of its own.
[[maybe_unused]] const int at_fork = ::pthread_atfork(nullptr, nullptr, [] { pieces_done = 0; });

}  // namespace

namespace ddprun::fake_cuda {

cudaError_t device_state() {
  const auto faults_after = switched("FAKE_CUDA_FAULT");
  return faults_after && pieces_done >= number_of(faults_after, 0) ? cudaErrorIllegalAddress
                                                                   : cudaSuccess;
}

}  // namespace ddprun::fake_cuda

CUstream_st::CUstream_st(int on) : device(on) {}

void CUstream_st::give(Work work) {
  if (const auto graph = recorded) {
    const std::lock_guard lock(graph->mutex);
    graph->work.push_back(std::move(work));
    ++graph->before[this][this];
    return;
  }
  {
    std::unique_lock lock(mutex_);
    if (const auto room = switched("FAKE_CUDA_QUEUE")) {
      changed_.wait(lock, [&] { return std::ssize(work_) < number_of(room, 0); });
    }
    work_.push_back(std::move(work));
    // Detached, since it may stand still for as long as the process lives.
    if (!std::exchange(runs_, true)) std::thread([this] { run(); }).detach();
  }
  changed_.notify_all();
}

cudaError_t CUstream_st::query() {
  const std::lock_guard lock(mutex_);
  const cudaError_t state = ddprun::fake_cuda::device_state();
  if (state != cudaSuccess) return state;
  return work_.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t CUstream_st::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return work_.empty() || ddprun::fake_cuda::device_state() != cudaSuccess; });
  return ddprun::fake_cuda::device_state();
}

void CUstream_st::end_after_work() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void CUstream_st::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !work_.empty(); });
    if (work_.empty()) return;
    const auto stalls_after = switched("FAKE_CUDA_STALL");
    if (stalls_after && pieces_done >= number_of(stalls_after, 0)) {
      changed_.wait(lock, [] { return false; });
    }
    const Work& next = work_.front();  // Stays in place: only this thread takes work away.
    lock.unlock();
    next();
    lock.lock();
    work_.pop_front();
    ++pieces_done;
    changed_.notify_all();
  }
}
