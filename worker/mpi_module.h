// The MPI module: everything that links to MPI lies in one shared library that is opened only for
// make_mpi_communicator().
#pragma once

#include "worker/loaded_module.h"

namespace ddprun::worker {

// The module's one entry point, a MakeModuleCommunicator.
inline constexpr char mpi_module_entry[] = "ddprun_make_mpi_communicator";

// Opens $DDPRUN_MPI_MODULE, or libddprun_mpi.so from beside this program; once per process. Throws
// CommunicatorError that says what is missing: the module, or a library it needs.
void open_mpi_module();

}  // namespace ddprun::worker
