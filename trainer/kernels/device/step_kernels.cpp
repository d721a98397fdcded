// Finding the table in the module, which `train` is not linked to.
#include "trainer/kernels/device/step_kernels.h"

#include <dlfcn.h>

#include <string>

#include "worker/communicator_modules.h"

namespace ddprun::trainer {

const StepKernels& step_kernels(bool cuda) {
  if (!cuda) return host_step_kernels();
  worker::open_cuda_module();  // For all of the process, so that the loader knows its names.
  void* const entry = ::dlsym(RTLD_DEFAULT, step_kernels_entry);
  if (entry == nullptr) {
    throw KernelError(std::string("the CUDA module has no kernels (no ") + step_kernels_entry +
                      " in it): it was built without nvcc, or is another version's; build ddprun "
                      "where a CUDA toolkit with nvcc is");
  }
  return *reinterpret_cast<StepKernelsOf*>(entry)();
}

}  // namespace ddprun::trainer
