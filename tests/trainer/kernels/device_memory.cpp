// Apart from the header, because c10's own CHECK comes with what it includes.
#include "tests/trainer/kernels/device_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

namespace ddprun::trainer::testing {

void* stream_of(torch::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}

void wait_for(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

}  // namespace ddprun::trainer::testing
