// What a device says of itself, an H100, and the names of errors.
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/fake_cuda/cudart_objects.h"

using namespace ddprun::fake_cuda;

namespace {

constexpr int threads_of_block = 1024, threads_of_multiprocessor = 2048, multiprocessors = 132;

// Of the driver LibTorch asks for its functions by name when it first needs one of them, and calls
// them for what nobody here asks for.
CUresult refuse() { return CUDA_ERROR_NOT_SUPPORTED; }

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};
constexpr ErrorText unknown{cudaErrorUnknown, "cudaErrorUnknown", "unrecognized error code"};

const ErrorText& text_of(cudaError_t error) {
  const auto* const found =
      std::find_if(std::begin(error_texts), std::end(error_texts),
                   [&](const ErrorText& known) { return known.error == error; });
  return found == std::end(error_texts) ? unknown : *found;
}

}  // namespace

extern "C" {

const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }
const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int device) {
  *about = {};
  std::snprintf(about->name, sizeof about->name, "GPU of the tests");
  about->uuid.bytes[0] = static_cast<char>(1 + device);
  about->pciBusID = 1 + device;
  about->major = 9;
  size_t free = 0;
  cudaMemGetInfo(&free, &about->totalGlobalMem);
  about->warpSize = 32;
  about->maxThreadsPerBlock = threads_of_block;
  about->maxThreadsPerMultiProcessor = threads_of_multiprocessor;
  about->multiProcessorCount = multiprocessors;
  about->maxBlocksPerMultiProcessor = 32;
  for (int dim = 0; dim < 3; ++dim) {
    about->maxThreadsDim[dim] = dim == 2 ? 64 : threads_of_block;
    about->maxGridSize[dim] = dim == 0 ? 0x7fffffff : 0xffff;
  }
  about->sharedMemPerBlock = 48 << 10;
  about->sharedMemPerBlockOptin = 227 << 10;
  about->sharedMemPerMultiprocessor = 228 << 10;
  about->regsPerBlock = about->regsPerMultiprocessor = 65536;
  about->l2CacheSize = 50 << 20;
  about->textureAlignment = 512;
  about->concurrentKernels = about->canMapHostMemory = about->unifiedAddressing = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp about;
  cudaGetDeviceProperties(&about, device);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = about.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = about.maxThreadsPerMultiProcessor;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = about.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = about.warpSize;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = about.major;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(about.sharedMemPerBlockOptin);
      return cudaSuccess;
    default:
      *value = 0;
      return cudaSuccess;
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", 1 + device);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&refuse);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
