// Finding the table in the module, which `train` is not linked to.
#include "trainer/kernels/device/step_kernels.h"

#include <dlfcn.h>

#include <string>

#include "worker/communicator_modules.h"

namespace ddprun::trainer {
namespace {

void* entry_of_module() {
  worker::open_cuda_module();  // For all of the process, so that the loader knows its names.
  return ::dlsym(RTLD_DEFAULT, step_kernels_entry);
}

}  // namespace

bool cuda_module_has_step_kernels() { return entry_of_module() != nullptr; }

const StepKernels& step_kernels(bool cuda) {
  if (!cuda) return host_step_kernels();
  void* const entry = entry_of_module();
  if (entry == nullptr) {
    throw KernelError(std::string("the CUDA module has no kernels (no ") + step_kernels_entry +
                      " in it): it was built without nvcc, or is another version's; build ddprun "
                      "where a CUDA toolkit with nvcc is");
  }
  return *reinterpret_cast<StepKernelsOf*>(entry)();
}

}  // namespace ddprun::trainer
