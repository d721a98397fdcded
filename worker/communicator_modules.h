// The communicators that need libraries which few jobs want: NCCL with CUDA, and MPI. Each lies in
// a module, one shared library with one entry point, that is opened only when it is asked for, so
// that programs build and start without it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>

#include "worker/communicator.h"

namespace ddprun::worker {

// Opens $DDPRUN_CUDA_MODULE, or libddprun_cuda.so from beside this program or from the loader's
// path; once per process. From then on LibTorch finds its CUDA parts, if the module was built with
// them: open it before LibTorch is first asked about CUDA, because it keeps the answer. Throws
// CommunicatorError that says what is missing: the module, or a library it needs.
void open_cuda_module();

// A module's entry point. `error` receives at most `error_bytes` characters, terminated, when the
// result is null.
using MakeModuleCommunicator = Communicator*(const WorkerEnv* env,
                                             const CommunicatorOptions* options, char* error,
                                             std::size_t error_bytes);

// Its name in the CUDA module and in that for MPI. Another one whenever Communicator has other
// functions, so that a module of another version is refused.
inline constexpr char cuda_module_entry[] = "ddprun_make_nccl_communicator_3";
inline constexpr char mpi_module_entry[] = "ddprun_make_mpi_communicator_3";

// What an entry point does: exceptions stay within the module that threw them.
template <class Made>
Communicator* make_for_program(const WorkerEnv& env, const CommunicatorOptions& options,
                               char* error, std::size_t error_bytes) noexcept {
  try {
    return new Made(env, bounded(options));
  } catch (const std::exception& problem) {
    std::snprintf(error, error_bytes, "%s", problem.what());
  } catch (...) {
    std::snprintf(error, error_bytes, "unknown error while the communicator was made");
  }
  return nullptr;
}

}  // namespace ddprun::worker
