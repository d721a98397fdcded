// What libcudart and libnccl export, as far as it is called.
#include "tests/worker/nccl/fake_device.h"

#include <cstdlib>
#include <cstring>

namespace ddprun::testing {

FakeDevice* device = nullptr;

}  // namespace ddprun::testing

using ddprun::testing::device;

extern "C" {

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "fine";
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(&device->handles.emplace_back());
  device->events[*event] = cudaErrorNotReady;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  device->events.at(event) = cudaErrorNotReady;
  device->recorded.push_back(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return device->events.at(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  device->events.erase(event);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  device->on_free();
  std::free(data);
  return cudaSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  static int somewhere = 0;
  *comm = reinterpret_cast<ncclComm_t>(&somewhere);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) {
  device->on_abort();
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  *data = std::malloc(bytes);
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

}  // extern "C"
