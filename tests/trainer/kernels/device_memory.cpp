// Apart from the header, because c10's own CHECK comes with what it includes.
#include "tests/trainer/kernels/device_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include "worker/communicator_modules.h"

namespace ddprun::trainer::testing {

std::string no_gpu() {
  try {
    ddprun::worker::open_cuda_module();
  } catch (const ddprun::worker::CommunicatorError& error) {
    return error.what();
  }
  return torch::cuda::is_available() ? "" : "LibTorch finds no usable GPU";
}

void* stream_of(torch::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}

void wait_for(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

}  // namespace ddprun::trainer::testing
