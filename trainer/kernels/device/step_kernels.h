// The kernels of our own that a training step calls, on a GPU or in their place on the CPU.
//
//   step_kernels(cuda)  --> libddprun_cuda.so    step_kernels_cuda.cu    queued on a stream
//                       --> host_kernels.cpp     the same functions in loops, done on return
//
// Everything that a structure points to is in the memory of the device, and stays until the work
// on the stream is done. Errors: KernelError with what was tried.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "trainer/kernels/device/cast_kernel.h"
#include "trainer/kernels/device/gather_kernel.h"
#include "trainer/kernels/device/norm_kernel.h"
#include "trainer/kernels/device/normalize_kernel.h"
#include "trainer/kernels/device/pool_kernel.h"
#include "trainer/kernels/device/resample_kernel.h"
#include "trainer/kernels/device/sgd_kernel.h"

namespace ddprun::trainer {

class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where an error's words go.
struct KernelProblem {
  char text[512] = "";
};

// False: it was not queued, and `problem` says why. As the CUDA module has it: plain C, so that no
// exception crosses the border of the module.
struct StepKernels {
  bool (*sgd)(const SgdPass& pass, void* stream, KernelProblem& problem);
  bool (*find_overflow)(const SgdPass& pass, LossScale* scale, void* stream,
                        KernelProblem& problem);
  bool (*advance_scale)(LossScale* scale, const LossScaleRule& rule, void* stream,
                        KernelProblem& problem);
  bool (*gather)(const GatherBatch& batch, void* stream, KernelProblem& problem);
  bool (*cast)(const CastPass& pass, void* stream, KernelProblem& problem);
  bool (*normalize)(const NormalizeBatch& batch, void* stream, KernelProblem& problem);
  bool (*resample)(const ResampleBatch& batch, void* stream, KernelProblem& problem);
  bool (*norm_forward)(const NormForward& pass, void* stream, KernelProblem& problem);
  bool (*norm_backward)(const NormBackward& pass, void* stream, KernelProblem& problem);
  bool (*pool_forward)(const PoolForward& pass, void* stream, KernelProblem& problem);
  bool (*pool_backward)(const PoolBackward& pass, void* stream, KernelProblem& problem);
};

// The name under which the CUDA module has a function that returns its table. The number changes
// with the structures: another version's module must not be mistaken for this one's.
inline constexpr char step_kernels_entry[] = "ddprun_step_kernels_6";
using StepKernelsOf = const StepKernels*();

const StepKernels& host_step_kernels();

// Opens it; false where it was built without nvcc. Throws CommunicatorError where it cannot be
// opened.
bool cuda_module_has_step_kernels();

// Opens the CUDA module for `cuda`. Throws KernelError where that has none, CommunicatorError as
// cuda_module_has_step_kernels().
const StepKernels& step_kernels(bool cuda);

// Throws KernelError.
template <typename... Parameters, typename... Arguments>
void run_kernel(bool (*kernel)(Parameters...), const Arguments&... arguments) {
  KernelProblem problem;
  if (!kernel(arguments..., problem)) throw KernelError(problem.text);
}

}  // namespace ddprun::trainer
