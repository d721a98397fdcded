// What libcudart and libnccl export, as far as it is called.
#include "tests/worker/nccl/fake_device.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

namespace ddprun::testing {

FakeDevice* device = nullptr;

}  // namespace ddprun::testing

using ddprun::testing::device;

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

// What NCCL answers once more: counts down.
ncclResult_t nccl_state() {
  if (device->nccl_looks <= 0) return device->nccl_result;
  --device->nccl_looks;
  return ncclInProgress;
}

cudaError_t answer_of(const char* function) {
  const char* const failing = device->failing;
  return failing != nullptr && std::strcmp(failing, function) == 0 ? cudaErrorIllegalAddress
                                                                   : cudaSuccess;
}

void* new_memory(std::size_t bytes) {
  const std::lock_guard lock(device->mutex);
  return *device->memory.insert(std::malloc(bytes)).first;
}

ncclResult_t queue_work(const char* name) {
  const std::lock_guard lock(device->mutex);
  device->called.emplace_back(name);
  return device->nccl_looks > 0 ? ncclInProgress : ncclSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device->devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return answer_of("cudaSetDevice"); }
cudaError_t cudaDeviceSynchronize() {
  device->on_synchronize();
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "fine";
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard lock(device->mutex);
  if (answer_of("cudaEventCreate") != cudaSuccess) return cudaErrorIllegalAddress;
  *event = reinterpret_cast<cudaEvent_t>(&device->handles.emplace_back());
  device->events[*event] = cudaErrorNotReady;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t, unsigned flags) {
  const std::lock_guard lock(device->mutex);
  if (answer_of("cudaEventRecord") != cudaSuccess) return cudaErrorIllegalAddress;
  device->events.at(event) = cudaErrorNotReady;
  device->recorded.push_back(event);
  device->record_flags[event] = flags;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const std::lock_guard lock(device->mutex);
  *ms = device->times_ms[to] - device->times_ms[from];
  return last_error = answer_of("cudaEventElapsedTime");
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (device->capturing) {
    if (++device->looks_while_capturing == 2) device->looked_twice.happen();
    if (capture_mode == cudaStreamCaptureModeGlobal) return cudaErrorStreamCaptureUnsupported;
  }
  const std::lock_guard lock(device->mutex);
  return device->events.at(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(device->mutex);
  device->events.erase(event);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = device->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return answer_of("cudaStreamIsCapturing");
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  *id = device->capture_id;
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  if (device->stream_looks <= 0) return device->stream_result;
  --device->stream_looks;
  return cudaErrorNotReady;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (device->full) return last_error = cudaErrorMemoryAllocation;
  *data = new_memory(bytes);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return answer_of("cudaMemcpyAsync");
}
cudaError_t cudaFree(void* data) {
  device->on_free();
  const std::lock_guard lock(device->mutex);
  device->memory.erase(data);
  std::free(data);
  return cudaSuccess;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "a word of NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return "and why"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  for (std::size_t i = 0; i < sizeof(id->internal); ++i) id->internal[i] = static_cast<char>(7 * i);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  static int somewhere = 0;
  *comm = reinterpret_cast<ncclComm_t>(&somewhere);
  return device->nccl_looks > 0 ? ncclInProgress : ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = nccl_state();
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) {
  device->on_abort();
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  if (device->full) return ncclUnhandledCudaError;
  *data = new_memory(bytes);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) {
  cudaFree(data);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void* data, size_t, void** registration) {
  *registration = data;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t op, ncclComm_t,
                           cudaStream_t stream) {
  {
    const std::lock_guard lock(device->mutex);
    device->reductions.push_back({op, stream});
  }
  return queue_work("all_reduce");
}
// Of a world of one.
ncclResult_t ncclAllGather(const void* send, void* recv, size_t bytes, ncclDataType_t, ncclComm_t,
                           cudaStream_t) {
  device->gathered = send;
  if (recv != send) std::memcpy(recv, send, bytes);
  return queue_work("all_gather");
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                               cudaStream_t) {
  return queue_work("reduce_scatter");
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t) {
  return queue_work("broadcast");
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return queue_work("send");
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return queue_work("recv");
}

}  // extern "C"
