// The CUDA module: everything that links to CUDA and NCCL lies in one shared library that is opened
// only when a device is asked for, so that CPU jobs start without it and programs build without it.
#pragma once

#include "worker/loaded_module.h"

namespace ddprun::worker {

// The module's one entry point, a MakeModuleCommunicator.
inline constexpr char cuda_module_entry[] = "ddprun_make_nccl_communicator";

// Opens $DDPRUN_CUDA_MODULE, or libddprun_cuda.so from beside this program; once per process.
// From then on LibTorch finds its CUDA parts, if the module was built with them: open it before
// LibTorch is first asked about CUDA, because it keeps the answer. Throws CommunicatorError that
// says what is missing: the module, or a library it needs.
void open_cuda_module();

}  // namespace ddprun::worker
