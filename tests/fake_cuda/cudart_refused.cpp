// Functions that LibTorch's libraries are linked to, and that nothing of this project comes to:
// they say so. Without CUDA's header, which has their parameters.
#include <cstdio>

namespace {

int refuse(const char* function) {
  std::fprintf(stderr, "fake CUDA: %s is not there\n", function);
  return 801;  // cudaErrorNotSupported.
}

}  // namespace

#define REFUSED(function) \
  extern "C" int function() { return refuse(#function); }

REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaFreeAsync)
REFUSED(cudaGetSymbolAddress)
REFUSED(cudaGraphDebugDotPrint)
REFUSED(cudaGraphNodeGetDependencies)
REFUSED(cudaHostRegister)
REFUSED(cudaHostUnregister)
REFUSED(cudaIpcCloseMemHandle)
REFUSED(cudaIpcGetEventHandle)
REFUSED(cudaIpcGetMemHandle)
REFUSED(cudaIpcOpenEventHandle)
REFUSED(cudaIpcOpenMemHandle)
REFUSED(cudaLaunchCooperativeKernel)
REFUSED(cudaMallocAsync)
REFUSED(cudaMemPoolGetAttribute)
REFUSED(cudaMemPoolSetAccess)
REFUSED(cudaMemPoolSetAttribute)
REFUSED(cudaMemPoolTrimTo)
REFUSED(cudaMemcpy2DAsync)
REFUSED(cudaMemcpyToSymbol)
REFUSED(cudaStreamAddCallback)
REFUSED(cudaStreamCreate)
REFUSED(cudaStreamGetPriority)
