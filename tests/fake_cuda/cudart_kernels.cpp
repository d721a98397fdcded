// Kernels: they are known by name, take their place in a stream or a graph, and mostly do nothing
// there.
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/fake_cuda/cudart_objects.h"
#include "tests/fake_cuda/kernels.h"

using namespace ddprun::fake_cuda;

namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> pushed;

struct Kernels {
  std::mutex mutex;
  std::map<const void*, const char*> names;
};
Kernels& kernels() {
  static auto& instance = *new Kernels;
  return instance;
}

bool fits(const dim3& grid, const dim3& block) {
  const auto of = [](const dim3& size) {
    return static_cast<unsigned long long>(size.x) * size.y * size.z;
  };
  return of(grid) > 0 && grid.x <= 0x7fffffff && grid.y <= 0xffff && grid.z <= 0xffff &&
         of(block) > 0 && of(block) <= 1024 && block.z <= 64;
}

const char* name_of(const void* kernel) {
  const std::lock_guard lock(kernels().mutex);
  const auto known = kernels().names.find(kernel);
  return known == kernels().names.end() ? "?" : known->second;
}

// Which kernel, for who looks for the one that was refused.
cudaError_t refused(const void* kernel, const Configuration& as, cudaError_t error) {
  std::fprintf(stderr, "fake CUDA: %s of %s, grid %u %u %u, block %u %u %u\n",
               cudaGetErrorName(error), name_of(kernel), as.grid.x, as.grid.y, as.grid.z,
               as.block.x, as.block.y, as.block.z);
  return told(error);
}

cudaError_t launch(const void* kernel, const Configuration& as, void* const* arguments) {
  if (!fits(as.grid, as.block)) return refused(kernel, as, cudaErrorInvalidConfiguration);
  cudaStream_t const on = real(as.stream);
  if (on->device != used_device()) return refused(kernel, as, cudaErrorInvalidResourceHandle);
  Work work = work_of_kernel(name_of(kernel), as.grid.y, arguments);
  on->give(work ? std::move(work) : [] {});
  return device_state();
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(kernels().mutex);
  kernels().names[function] = name;
}
char __cudaInitModule(void**) { return 1; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  pushed.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  const Configuration as = pushed.back();
  pushed.pop_back();
  *grid = as.grid;
  *block = as.block;
  *shared_bytes = as.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = as.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel, {grid, block, shared_bytes, stream}, arguments);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return launch(reinterpret_cast<const void*>(kernel), {grid, block, shared_bytes, stream},
                arguments);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* as, const void* kernel,
                                void** arguments) {
  return launch(kernel, {as->gridDim, as->blockDim, as->dynamicSmemBytes, as->stream}, arguments);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          size_t) {
  *blocks = 2048 / threads;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel,
                                                                   int threads, size_t bytes,
                                                                   unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, bytes);
}

}  // extern "C"
