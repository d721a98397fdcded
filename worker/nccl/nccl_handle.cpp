// Who may use NCCL's communicator while another thread ends it.
#include "worker/nccl/nccl_handle.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "worker/communicator.h"

namespace ddprun::worker {
namespace {

constexpr auto finish_pause = std::chrono::microseconds{50};

// Of a thread that waits for the device, and may do so for ever.
struct DeviceWait {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<cudaError_t> end;
};

}  // namespace

void check_cuda(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  throw CommunicatorError(what + ": " + cudaGetErrorString(status));
}

NcclHandle::~NcclHandle() {
  if (owner_.is_this()) {
    assert(comm_ == nullptr);
  } else {
    leave_to_parent(changed_);
  }
}

ncclResult_t NcclHandle::start(const ncclUniqueId& id, int rank, int world_size) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const std::lock_guard lock(mutex_);
  assert(comm_ == nullptr);
  return ncclCommInitRankConfig(&comm_, world_size, id, rank, &config);
}

std::optional<ncclResult_t> NcclHandle::state() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return std::nullopt;
  ncclResult_t state = ncclSuccess;
  return ncclCommGetAsyncError(comm_, &state) == ncclSuccess ? state : ncclInternalError;
}

ncclComm_t NcclHandle::take() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) {
    ending_ = true;
    ending_since_ = Clock::now();
  }
  return std::exchange(comm_, nullptr);
}

void NcclHandle::end(ncclComm_t comm, ncclResult_t (*how)(ncclComm_t)) noexcept {
  const auto work = [self = shared_from_this(), comm, how] {
    cudaSetDevice(self->device_);
    how(comm);
    self->ended();
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {  // No thread is to be had.
    work();
  }
}

void NcclHandle::ended() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ending_ = false;
  }
  changed_.notify_all();
}

void NcclHandle::leave_call() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr || left_in_call_) return;
  left_in_call_ = true;
  ending_since_ = Clock::now();
}

bool NcclHandle::wait_for_end() noexcept {
  std::unique_lock lock(mutex_);
  while (ending_ || (left_in_call_ && comm_ != nullptr)) {
    const auto deadline = ending_since_ + end_time_max_;  // Which moves when it is taken.
    if (Clock::now() >= deadline) return false;
    changed_.wait_until(lock, deadline);
  }
  return true;
}

void NcclHandle::abort() noexcept {
  ncclComm_t const comm = take();
  if (comm != nullptr) end(comm, ncclCommAbort);
}

void NcclHandle::finish(Clock::time_point deadline, const std::function<bool()>& aborted) noexcept {
  ncclComm_t const comm = take();
  if (comm == nullptr) return;
  ncclResult_t state = ncclCommFinalize(comm);
  while (state == ncclInProgress && Clock::now() < deadline && !aborted()) {
    std::this_thread::sleep_for(finish_pause);
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
  }
  end(comm, state == ncclSuccess ? ncclCommDestroy : ncclCommAbort);
}

std::shared_ptr<void> NcclHandle::allocate(std::size_t bytes) {
  check_cuda(cudaSetDevice(device_), "cudaSetDevice");
  bytes = std::max<std::size_t>(bytes, 256);
  Memory memory;
  memory.of_nccl = ncclMemAlloc(&memory.data, bytes) == ncclSuccess;
  if (memory.of_nccl) {
    call([&](ncclComm_t comm) {
      const auto result = ncclCommRegister(comm, memory.data, bytes, &memory.registration);
      if (result != ncclSuccess) memory.registration = nullptr;
      return result;
    });
  } else {
    const cudaError_t status = cudaMalloc(&memory.data, bytes);
    // CUDA keeps it as its last error, and whoever launches a kernel next would take it for theirs.
    cudaGetLastError();
    const std::string what = "cudaMalloc of " + std::to_string(bytes) + " bytes";
    if (status == cudaErrorMemoryAllocation) {
      throw OutOfMemory(what + ": " + cudaGetErrorString(status));
    }
    check_cuda(status, what);
  }
  std::shared_ptr<void> owner(
      memory.data, [self = shared_from_this(), memory](void*) { self->release(memory); });
  check_cuda(cudaMemset(memory.data, 0, bytes), "cudaMemset");
  const auto done = wait_for_device();
  if (!done) {
    throw CommunicatorError("GPU " + std::to_string(device_) +
                            " does not answer: what it was given is not done in time");
  }
  check_cuda(*done, "cudaDeviceSynchronize");
  return owner;
}

// CUDA's own wait has no limit, and a look at an event would see one stream alone.
std::optional<cudaError_t> NcclHandle::wait_for_device() noexcept {
  std::chrono::milliseconds limit{};
  {
    const std::lock_guard lock(mutex_);
    if (device_hangs_) return std::nullopt;
    limit = comm_ == nullptr ? end_time_max_ : work_time_max_;
  }
  try {
    const auto wait = std::make_shared<DeviceWait>();
    std::thread([wait, device = device_] {
      cudaSetDevice(device);
      const cudaError_t end = cudaDeviceSynchronize();
      const std::lock_guard lock(wait->mutex);
      wait->end = end;
      wait->changed.notify_all();
    }).detach();
    std::unique_lock lock(wait->mutex);
    wait->changed.wait_for(lock, limit, [&] { return wait->end.has_value(); });
    if (wait->end) return wait->end;
  } catch (const std::exception&) {  // No thread is to be had.
    return cudaDeviceSynchronize();
  }
  const std::lock_guard lock(mutex_);
  device_hangs_ = true;
  return std::nullopt;
}

void NcclHandle::release(const Memory& memory) noexcept {
  if (!owner_.is_this()) return;
  cudaSetDevice(device_);
  // Kernels that are being aborted may still write to it. Better lost than written to by them
  // when it is somebody else's.
  if (!wait_for_end()) return;
  // ncclMemFree unmaps at once, where cudaFree waits: on an H200 a broadcast met an illegal
  // address.
  if (!wait_for_device()) return;
  {
    const std::lock_guard lock(mutex_);
    if (memory.registration != nullptr && comm_ != nullptr) {
      ncclCommDeregister(comm_, memory.registration);
    }
  }
  if (memory.of_nccl) {
    ncclMemFree(memory.data);
  } else {
    cudaFree(memory.data);
  }
}

}  // namespace ddprun::worker
