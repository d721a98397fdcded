// Opening the CUDA module and calling its entry point.
#include "worker/cuda_module.h"

#include <mutex>

namespace ddprun::worker {
namespace {

MakeModuleCommunicator* entry() {
  static std::mutex mutex;
  static MakeModuleCommunicator* opened = nullptr;  // Stays open until the process ends.
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    opened = open_module({.what = "CUDA",
                          .file = "libddprun_cuda.so",
                          .variable = "DDPRUN_CUDA_MODULE",
                          .entry = cuda_module_entry,
                          .needs = "libcudart of a CUDA toolkit and libnccl"});
  }
  return opened;
}

}  // namespace

void open_cuda_module() { entry(); }

std::unique_ptr<Communicator> make_nccl_communicator(const WorkerEnv& env,
                                                     const CommunicatorOptions& options) {
  return make_module_communicator(entry(), env, options);
}

}  // namespace ddprun::worker
