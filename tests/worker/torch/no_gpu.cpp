// Apart from the header, because c10's own CHECK comes with what it includes.
#include "tests/worker/torch/no_gpu.h"

#include <torch/cuda.h>

#include "worker/communicator_modules.h"

namespace ddprun::worker {

std::string no_gpu() {
  try {
    open_cuda_module();
  } catch (const CommunicatorError& error) {
    return error.what();
  }
  return torch::cuda::is_available() ? "" : "LibTorch finds no usable GPU";
}

}  // namespace ddprun::worker
