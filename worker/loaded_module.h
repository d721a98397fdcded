// Opening the parts that need libraries which few jobs want: CUDA with NCCL, and MPI. Each is one
// shared library with one entry point, so that programs build and start without it.
#pragma once

#include <cstddef>
#include <string>

#include "worker/communicator.h"

namespace ddprun::worker {

struct ModuleNames {
  std::string what;      // "CUDA", for messages.
  std::string file;      // "libddprun_cuda.so"
  std::string variable;  // Names another file: "DDPRUN_CUDA_MODULE".
  std::string entry;     // The function that makes its communicator.
  std::string needs;     // "a CUDA toolkit and NCCL": what it is built with.
};

// What every module offers under its entry's name. `error` receives at most `error_bytes`
// characters, terminated, when the result is null.
using MakeModuleCommunicator = Communicator*(const WorkerEnv* env,
                                             const CommunicatorOptions* options, char* error,
                                             std::size_t error_bytes);

// Opens the file that the variable names, or the one beside this program, or the one on the
// loader's path. Throws CommunicatorError that says what is missing: the module, or a library that
// it needs.
MakeModuleCommunicator* open_module(const ModuleNames& names);

// Calls it. Throws CommunicatorError with what it said.
std::unique_ptr<Communicator> make_module_communicator(MakeModuleCommunicator* entry,
                                                       const WorkerEnv& env,
                                                       const CommunicatorOptions& options);

}  // namespace ddprun::worker
