// What LibTorch calls of cuBLAS, cuDNN and the driver in a training step, without a GPU and without
// those libraries' headers: a call takes its place in its handle's stream, and computes nothing.
//
// It is preloaded, under the driver's name; for what else LibTorch names there are stand-ins
// (stand_ins.py), which say that they were called.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "tests/fake_cuda/contexts.h"

namespace {

// Success has the same number in all of them.
constexpr int success = 0, multiply_failed = 13, cudnn_failed = 5000, driver_refuses = 801;

struct Handle {
  int device = 0;
  cudaStream_t stream = nullptr;
};

Handle* new_handle() {
  auto* const handle = new Handle;
  cudaGetDevice(&handle->device);
  return handle;
}

int queue(cudaStream_t stream, int otherwise) {
  const auto nothing = [](void*) {};
  return cudaLaunchHostFunc(stream, nothing, nullptr) == cudaSuccess ? success : otherwise;
}

// A handle is of the device on which it was made.
int queue(const Handle* handle, int otherwise) {
  int current = 0;
  cudaGetDevice(&current);
  if (current == handle->device) return queue(handle->stream, otherwise);
  std::fprintf(stderr, "fake CUDA: a handle of device %d is used while %d is the current one\n",
               handle->device, current);
  return otherwise;
}

int set_stream(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return success;
}

int make_descriptor(void** descriptor) {
  *descriptor = new char;
  return success;
}

int forget_descriptor(void* descriptor) {
  delete static_cast<char*>(descriptor);
  return success;
}

constexpr std::size_t workspace_bytes = 1 << 20;

int tell_bytes(std::size_t* bytes) {
  *bytes = workspace_bytes;
  return success;
}

// Numbers of cuDNN's graph API.
constexpr int heuristic_results = 202, engine_knobs = 302, workspace_of_plan = 402, int64_type = 3,
              descriptor_type = 15, ready_status = 0;

}  // namespace

#define MULTIPLIES(function) \
  extern "C" int function(const Handle* handle) { return queue(handle, multiply_failed); }
#define COMPUTES(function) \
  extern "C" int function(const Handle* handle) { return queue(handle, cudnn_failed); }
#define AGREES(function) \
  extern "C" int function() { return success; }
#define MAKES_DESCRIPTOR(function) \
  extern "C" int function(void** made) { return make_descriptor(made); }
#define FORGETS_DESCRIPTOR(function) \
  extern "C" int function(void* made) { return forget_descriptor(made); }
#define REFUSED(function)                                            \
  extern "C" int function() {                                        \
    std::fprintf(stderr, "fake CUDA: %s is not there\n", #function); \
    return driver_refuses;                                           \
  }

extern "C" {

// cuBLAS.
int cublasCreate_v2(Handle** handle) {
  *handle = new_handle();
  return success;
}
int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return success;
}
int cublasSetStream_v2(Handle* handle, cudaStream_t stream) { return set_stream(handle, stream); }
int cublasGetMathMode(Handle*, int* mode) { return *mode = success; }
int cublasGetPointerMode_v2(Handle*, int* mode) { return *mode = success; }

struct LtResult {  // cublasLtMatmulHeuristicResult_t.
  std::uint64_t algorithm[8];
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int,
                                   LtResult* results, int* count) {
  results[0] = {};
  *count = 1;
  return success;
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const void*, void*, std::size_t,
                   cudaStream_t stream) {
  return queue(stream, multiply_failed);
}

// cuDNN.
std::size_t cudnnGetVersion() { return 91900; }
int cudnnCreate(Handle** handle) { return cublasCreate_v2(handle); }
int cudnnSetStream(Handle* handle, cudaStream_t stream) { return set_stream(handle, stream); }
int cudnnGetStream(const Handle* handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return success;
}
int cudnnBackendCreateDescriptor(int, void** made) { return make_descriptor(made); }
// One way to do anything, by an engine without knobs.
int cudnnBackendGetAttribute(void*, int name, int type, std::int64_t requested, std::int64_t* count,
                             void* values) {
  const bool number = type == int64_type;
  const bool one = number || (type == descriptor_type && name != engine_knobs);
  if (count != nullptr) *count = one ? 1 : 0;
  if (number && requested > 0) {
    *static_cast<std::int64_t*>(values) =
        name == workspace_of_plan ? static_cast<std::int64_t>(workspace_bytes) : 0;
  }
  return success;
}
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*, void*, void*,
                                                             void*, void*, std::size_t* bytes) {
  return tell_bytes(bytes);
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*, void*, void*,
                                                      void*, void*, void*, std::size_t* bytes) {
  return tell_bytes(bytes);
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*, void*,
                                                         std::size_t* bytes) {
  return tell_bytes(bytes);
}

// cuSOLVER, for the orthogonal matrices of PowerSGD.
int cusolverDnCreate(Handle** handle) { return cublasCreate_v2(handle); }
int cusolverDnDestroy(Handle* handle) { return cublasDestroy_v2(handle); }
int cusolverDnSetStream(Handle* handle, cudaStream_t stream) { return set_stream(handle, stream); }
int cusolverDnXgeqrf_bufferSize(void*, void*, std::int64_t, std::int64_t, int, const void*,
                                std::int64_t, int, const void*, int, std::size_t* on_device,
                                std::size_t* on_host) {
  *on_host = 0;
  return tell_bytes(on_device);
}
int cusolverDnSorgqr_bufferSize(void*, int, int, int, const void*, int, const void*, int* numbers) {
  return *numbers = success;
}

// The driver.
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = static_cast<int>(fake_cuda_contexts() >> device & 1);
  return success;
}
// A thread has the context of its device from its first call of the runtime on.
int cuCtxGetCurrent(void** context) {
  static char contexts[64];
  int device = 0;
  cudaGetDevice(&device);
  *context = &contexts[device];
  return success;
}
int cuDeviceGet(int* device, int number) {
  *device = number;
  return success;
}

// `train` looks for the driver's device node, which is not to be made where there is no driver.
int stat(const char* path, struct stat* about) {
  using Stat = int(const char*, struct stat*);
  static auto* const real = reinterpret_cast<Stat*>(::dlsym(RTLD_NEXT, "stat"));
  return real(std::string_view(path) == "/dev/nvidiactl" ? "/dev/null" : path, about);
}
// LibTorch brings a std::filesystem of its own, of an older C library.
int __xstat(int, const char* path, struct stat* about) { return stat(path, about); }

}  // extern "C"

AGREES(cublasSetWorkspace_v2)
AGREES(cublasSetMathMode)
AGREES(cublasSetPointerMode_v2)
MULTIPLIES(cublasGemmEx)
MULTIPLIES(cublasGemmStridedBatchedEx)
MULTIPLIES(cublasSgemmEx)
MULTIPLIES(cublasSgemm_v2)
MULTIPLIES(cublasSgemmStridedBatched)
MULTIPLIES(cublasSgemv_v2)
MULTIPLIES(cublasSdot_v2)
MULTIPLIES(cublasDgemm_v2)
MULTIPLIES(cublasDotEx)
MAKES_DESCRIPTOR(cublasLtMatmulDescCreate)
MAKES_DESCRIPTOR(cublasLtMatrixLayoutCreate)
MAKES_DESCRIPTOR(cublasLtMatmulPreferenceCreate)
FORGETS_DESCRIPTOR(cublasLtMatmulDescDestroy)
FORGETS_DESCRIPTOR(cublasLtMatrixLayoutDestroy)
FORGETS_DESCRIPTOR(cublasLtMatmulPreferenceDestroy)
AGREES(cublasLtMatmulDescSetAttribute)
AGREES(cublasLtMatmulPreferenceSetAttribute)
AGREES(cublasLtMatrixLayoutSetAttribute)

MAKES_DESCRIPTOR(cusolverDnCreateParams)
FORGETS_DESCRIPTOR(cusolverDnDestroyParams)
MULTIPLIES(cusolverDnXgeqrf)
MULTIPLIES(cusolverDnSorgqr)

FORGETS_DESCRIPTOR(cudnnBackendDestroyDescriptor)
AGREES(cudnnBackendSetAttribute)
AGREES(cudnnBackendFinalize)
COMPUTES(cudnnBackendExecute)
MAKES_DESCRIPTOR(cudnnCreateTensorDescriptor)
FORGETS_DESCRIPTOR(cudnnDestroyTensorDescriptor)
AGREES(cudnnSetTensorNdDescriptor)
MAKES_DESCRIPTOR(cudnnCreateActivationDescriptor)
FORGETS_DESCRIPTOR(cudnnDestroyActivationDescriptor)
AGREES(cudnnSetActivationDescriptor)
COMPUTES(cudnnBatchNormalizationForwardTrainingEx)
COMPUTES(cudnnBatchNormalizationBackwardEx)
COMPUTES(cudnnBatchNormalizationForwardInference)

REFUSED(cuCtxSetCurrent)
REFUSED(cuDeviceGetAttribute)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute)
REFUSED(cuFuncSetCacheConfig)
REFUSED(cuGetErrorString)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleLoad)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx)
REFUSED(cuModuleUnload)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuPointerGetAttribute)
REFUSED(cuTensorMapEncodeTiled)
