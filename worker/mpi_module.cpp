// Opening the MPI module and calling its entry point.
#include "worker/mpi_module.h"

#include <mutex>

namespace ddprun::worker {
namespace {

MakeModuleCommunicator* entry() {
  static std::mutex mutex;
  static MakeModuleCommunicator* opened = nullptr;  // Stays open until the process ends.
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    opened = open_module({.what = "MPI",
                          .file = "libddprun_mpi.so",
                          .variable = "DDPRUN_MPI_MODULE",
                          .entry = mpi_module_entry,
                          .needs = "Open MPI (libopenmpi-dev)"});
  }
  return opened;
}

}  // namespace

void open_mpi_module() { entry(); }

std::unique_ptr<Communicator> make_mpi_communicator(const WorkerEnv& env,
                                                    const CommunicatorOptions& options) {
  return make_module_communicator(entry(), env, options);
}

}  // namespace ddprun::worker
